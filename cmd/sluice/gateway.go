// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-net/sluice/tables"
)

func newGatewayCommand() *cobra.Command {
	cmd := group("gateway", "Take gateways out of use",
		"Take gateways out of use, without losing a connection.")
	cmd.AddCommand(newDrainCommand(), newUndrainCommand())
	return cmd
}

func newDrainCommand() *cobra.Command {
	return newGatewayNodeCommand(&cobra.Command{
		Use:   "drain NODE",
		Short: "Have new connections leave by other gateways",
		Long: `Have new connections leave by other gateways than a node, as kubectl cordon does too.
Connections that leave by it keep it until they end: sluice nat count, on the node, says how
many there are. If policies have no other gateway, the node stays theirs.

The command sets the annotation ` + tables.DrainAnnotation + ` of the Node, with the rights
of a kubeconfig.`,
		Example: `  sluice gateway drain node-2
  sluice gateway undrain node-2`,
	}, "true", "drained: new connections leave by other gateways")
}

func newUndrainCommand() *cobra.Command {
	return newGatewayNodeCommand(&cobra.Command{
		Use:   "undrain NODE",
		Short: "Undo sluice gateway drain",
		Long: `Undo sluice gateway drain: the node may be elected again. A Node that is cordoned stays
drained until kubectl uncordon.`,
		Example: "  sluice gateway undrain node-2",
	}, nil, "no longer drained")
}

// newGatewayNodeCommand completes a command that gives a Node's annotation a value; nil removes it.
func newGatewayNodeCommand(cmd *cobra.Command, value any, done string) *cobra.Command {
	cmd.Args = args("NODE")
	kubeconfig := cmd.Flags().String("kubeconfig", "",
		"of the cluster; empty: as kubectl finds it, or the service account of the pod")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := untilInterrupted(cmd.Context())
		defer stop()
		if err := annotateNode(ctx, *kubeconfig, args[0], value); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "node %s: %s\n", args[0], done)
		return nil
	}
	return cmd
}

func annotateNode(ctx context.Context, kubeconfig, node string, value any) error {
	const timeout = 30 * time.Second
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{tables.DrainAnnotation: value}},
	})
	if err != nil {
		return fmt.Errorf("make the patch of node %s: %w", node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).
		Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "sluice-gateway"})
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", node, err)
	}
	return nil
}
