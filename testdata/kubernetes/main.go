// SPDX-License-Identifier: Apache-2.0

// Command kubernetes is etcd and every component of Kubernetes in one binary,
// for the end-to-end tests. The first argument, or the name that the binary is
// called by, selects the component: one link instead of seven, and the
// components share what they have in common on disk and in memory.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // what each component's main imports
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components make a command each. Only the selected one is made: several of
// them register flags and feature gates of the whole process.
var components = map[string]func() *cobra.Command{
	"etcd":                    etcdCommand,
	"compact":                 compactCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if components[name] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:] // kubectl and kubelet read them, too
		name = os.Args[0]
	}
	component := components[name]
	if component == nil {
		names := slices.Sorted(maps.Keys(components))
		fmt.Fprintln(os.Stderr, "usage: kubernetes COMPONENT ...; one of", strings.Join(names, ", "))
		os.Exit(2)
	}
	if name == "kubectl" { // prints its errors itself, and chooses the exit status by them
		if err := cli.RunNoErrOutput(component()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return
	}
	os.Exit(cli.Run(component()))
}
