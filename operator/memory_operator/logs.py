"""Log lines as JSON, one object each, so that a collector needs no pattern."""

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; an audit line is JSON already and stays as it is."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line for one record."""
        if record.name == "memory_operator.audit":
            return record.getMessage()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    """Send all logs to standard error; audit lines are never below the level."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("memory_operator.audit").setLevel(logging.INFO)
    # kopf and the HTTP server would repeat every object and every probe.
    for noisy in ("kopf.objects", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
