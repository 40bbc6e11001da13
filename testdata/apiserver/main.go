// SPDX-License-Identifier: Apache-2.0

// Command apiserver is a Kubernetes API server and the etcd behind it in one
// binary, for the end-to-end tests: sub-commands, so that each runs as a
// process of its own and can be killed and restarted without the other.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	root := &cobra.Command{
		Use:           "apiserver",
		Short:         "kube-apiserver and etcd for tests",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	serve := app.NewAPIServerCommand()
	serve.Use = "serve"
	root.AddCommand(etcdCommand(), compactCommand(), serve)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}
