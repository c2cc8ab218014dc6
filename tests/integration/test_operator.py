"""What people do with custom resources, and what SpiceDB then holds."""

from authzed.api.v1 import SyncClient

from tests.support.organization import Organization, may, rows, wait_for


def test_an_agent_becomes_a_member_and_a_reader_and_a_writer(
    organization: Organization, zed: SyncClient
) -> None:
    groups = [{"name": "slack-eng", "access": "write"}, {"name": "all"}]
    organization.agent("pm", role="pm", groups=groups)

    organization.wait_ready("MemoryAgent")

    org = organization.name
    assert rows(zed, org) == {
        f"organization:{org}#member@agent:{org}/pm",
        f"group:{org}/slack-eng#writer@agent:{org}/pm",
        f"group:{org}/all#reader@agent:{org}/pm",
    }
    assert may(zed, f"organization:{org}", "access", f"agent:{org}/pm")
    organization.delete("MemoryAgent", "pm")
    organization.wait_gone("MemoryAgent", "pm")
    wait_for(lambda: not rows(zed, org), 1, lambda: str(rows(zed, org)))
