// Command kube is a whole Kubernetes in one binary: etcd, the control plane, the node, cluster DNS and kubectl.
//
// One binary links the shared packages once, so it builds in a fraction of the time that its parts would
// take, and every part has the same version. It is called as `kube PART …`, or through a link named PART.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() int{
	"coredns":                 runCoreDNS,
	"etcd":                    runEtcd,
	"kube-apiserver":          cobraPart(apiserver.NewAPIServerCommand),
	"kube-controller-manager": cobraPart(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              cobraPart(proxy.NewProxyCommand),
	"kube-scheduler":          cobraPart(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 cobraPart(kubectl.NewDefaultKubectlCommand),
	"kubelet":                 cobraPart(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
}

func main() {
	run, found := parts[filepath.Base(os.Args[0])]
	if !found && len(os.Args) > 1 {
		run, found = parts[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !found {
		names := make([]string, 0, len(parts))
		for name := range parts {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kube %s [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	os.Exit(run())
}

func cobraPart(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runCoreDNS() int {
	dnsserver.Directives = []string{"errors", "cache", "kubernetes"} // only what is imported above
	coremain.Run()
	return 0
}
