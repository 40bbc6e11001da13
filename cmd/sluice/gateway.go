// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/reconcilers/nodereport"
	"github.com/sluice-net/sluice/tables"
)

func newGatewayCommand() *cobra.Command {
	cmd := group("gateway", "Take gateways out of use",
		"Take gateways out of use: new connections leave by others.")
	cmd.AddCommand(newDrainCommand(), newUndrainCommand())
	return cmd
}

func newDrainCommand() *cobra.Command {
	var wait time.Duration
	cmd := newGatewayNodeCommand(&cobra.Command{
		Use:   "drain NODE",
		Short: "Have new connections leave by other gateways",
		Long: `Have new connections leave by other gateways than a node, as kubectl cordon does too,
and wait until it reports that no policy has it as gateway. Addresses of pools move to other
nodes, with their connections. Other connections that leave by the node keep it until they end:
sluice nat count, on the node, says how many there are. A policy that has no other gateway
keeps the node: the exit code is 1 then, when the time to wait is up, and if the node does not
report.

The command sets the annotation ` + tables.DrainAnnotation + ` of the Node, and reads the node's
NodeReport, with the rights of a kubeconfig.`,
		Example: `  sluice gateway drain node-2
  sluice gateway drain node-2 --wait 0
  sluice gateway undrain node-2`,
	}, func(ctx context.Context, n gatewayNode) error {
		if wait < 0 {
			return agent.UsageErrorf("--wait: want 0 or more")
		}
		// The report may be of when the node was drained before.
		drain := time.Now().UTC().Format(time.RFC3339Nano)
		if err := n.annotate(ctx, drain); err != nil {
			return err
		}
		n.say("marked as drained: new connections leave by other gateways, if there are any")
		if wait == 0 {
			return nil
		}
		return n.awaitDrained(ctx, drain, wait)
	})
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Minute,
		"for how long to wait until no policy has the node as gateway; 0: do not wait")
	return cmd
}

func newUndrainCommand() *cobra.Command {
	return newGatewayNodeCommand(&cobra.Command{
		Use:   "undrain NODE",
		Short: "Undo sluice gateway drain",
		Long: `Undo sluice gateway drain: the node may be elected again. A Node that is cordoned stays
drained until kubectl uncordon.`,
		Example: "  sluice gateway undrain node-2",
	}, func(ctx context.Context, n gatewayNode) error {
		if err := n.annotate(ctx, nil); err != nil {
			return err
		}
		n.say("no longer drained")
		return nil
	})
}

// newGatewayNodeCommand completes a command that does something with a Node.
func newGatewayNodeCommand(
	cmd *cobra.Command, do func(context.Context, gatewayNode) error,
) *cobra.Command {
	cmd.Args = args("NODE")
	kubeconfig := cmd.Flags().String("kubeconfig", "",
		"of the cluster; empty: as kubectl finds it, or the service account of the pod")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := untilInterrupted(cmd.Context())
		defer stop()
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = *kubeconfig
		loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
		config, err := loader.ClientConfig()
		if err != nil {
			return fmt.Errorf("find the API server: %w", err)
		}
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("connect to the API server: %w", err)
		}
		return do(ctx, gatewayNode{client, args[0], cmd.OutOrStdout()})
	}
	return cmd
}

// gatewayNode is a Node that may be a gateway.
type gatewayNode struct {
	client dynamic.Interface
	name   string
	out    io.Writer
}

func (n gatewayNode) say(text string) { fmt.Fprintf(n.out, "node %s: %s\n", n.name, text) }

// requestTimeout is how long a request to the API server may take.
const requestTimeout = 30 * time.Second

// annotate gives the annotation that drains the Node a value; nil removes it.
func (n gatewayNode) annotate(ctx context.Context, value any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{tables.DrainAnnotation: value}},
	})
	if err != nil {
		return fmt.Errorf("make the patch of node %s: %w", n.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = n.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Patch(ctx, n.name,
		types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "sluice-gateway"})
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", n.name, err)
	}
	return nil
}

// awaitDrained waits until the node reports that it knows a value of the annotation, and that
// traffic of no policy leaves by it.
func (n gatewayNode) awaitDrained(ctx context.Context, drain string, most time.Duration) error {
	deadline := time.After(most)
	for {
		lacks, err := n.lacks(ctx, drain)
		switch {
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return err
		case err != nil:
			lacks = err.Error()
		case lacks == "":
			n.say("no policy has it as gateway any more")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until node %s, which is marked, is drained: %w", n.name, ctx.Err())
		case <-deadline:
			return fmt.Errorf("node %s is marked as drained, but after %s %s", n.name, most, lacks)
		case <-time.After(reportInterval):
		}
	}
}

// reportInterval is how often a NodeReport is read: nodes write theirs each five seconds at most.
const reportInterval = time.Second

// maxUsers is how many policies an error names.
const maxUsers = 10

// lacks says what the NodeReport of the node lacks to tell that the node is drained, as it is since
// the annotation has a value.
func (n gatewayNode) lacks(ctx context.Context, drain string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object, err := n.client.Resource(nodereport.Resource).Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read NodeReport %s: %w", n.name, err)
	}
	var report struct {
		Status tables.ReportContents `json:"status"`
	}
	text, err := object.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		return "", fmt.Errorf("parse NodeReport %s: %w", n.name, err)
	}
	if report.Status.Drain != drain {
		return "its NodeReport does not say so: its agent does not run, is of a former version, " +
			"or does not report policies, or the Node was marked again", nil
	}
	var users []string
	for _, p := range report.Status.Policies {
		if len(p.EgressIPs) > 0 && len(users) < maxUsers {
			users = append(users, fmt.Sprintf("%s %v", p.Policy, p.EgressIPs))
		}
	}
	leaving := report.Status.Summary.Leaving
	if leaving == 0 && len(users) == 0 {
		return "", nil
	}
	if more := leaving - len(users); more > 0 {
		users = append(users, fmt.Sprintf("%d more", more))
	}
	return "it is still the gateway of " + strings.Join(users, ", ") +
		": a policy without another gateway keeps it", nil
}
