// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/lab"
)

// demo is a cluster in network namespaces, and what is shown of it.
type demo struct {
	*lab.Cluster

	steps []demoStep
	out   io.Writer
	in    *bufio.Reader // to wait for Enter; nil if not to wait
	wrong int           // observations that were not as expected

	// A pod on a node that never is the gateway, one on the first gateway, and
	// one that the policy does not select.
	remote, local, other *lab.Pod
}

// demoTimeout is for each thing that is waited for.
const demoTimeout = time.Minute

var errInterrupted = errors.New("interrupted")

func newDemoCommand() *cobra.Command {
	var pause, verbose, keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show egress gateways and network policy at work, in a cluster of network namespaces",
		Long: `Build a cluster of three nodes, with an agent on each, pods, and a server
outside, and show step by step which source address the server sees, and which
pods reach each other. Everything is in network namespaces of its own, and removed
at the end: the network of this machine is not touched.

It needs root, and exits with 1 if an observation is not as expected.`,
		Example: `  sudo sluice demo
  sudo sluice demo --pause      # wait for Enter before each step`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := untilInterrupted(cmd.Context())
			defer cancel()
			d := &demo{steps: demoSteps(), out: cmd.OutOrStdout()}
			if pause {
				d.in = bufio.NewReader(cmd.InOrStdin())
			}
			var options lab.Options
			if verbose {
				options.AgentLog = cmd.ErrOrStderr()
			}
			err := d.run(ctx, options, keep)
			if ctx.Err() != nil {
				return errInterrupted
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&pause, "pause", false, "wait for Enter before each step")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show what the agents log")
	cmd.Flags().BoolVar(
		&keep, "keep", false, "keep the directory with the agents' logs and the manifests",
	)
	return cmd
}

// run shows everything. The logs stay if that does not go as it should.
func (d *demo) run(ctx context.Context, options lab.Options, keep bool) (err error) {
	d.Cluster, err = lab.New(ctx, options)
	if err != nil {
		if errors.Is(err, lab.ErrNotRoot) {
			return fmt.Errorf("sluice demo %w", err)
		}
		return err
	}
	defer func() {
		if keep || err != nil && ctx.Err() == nil {
			d.CloseKeepingDir()
			d.say("\nLogs of the agents: %s/node-*/agent.log", d.Dir())
			return
		}
		d.Close()
	}()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	if d.in != nil {
		pages, closePages := context.WithCancel(ctx)
		defer closePages()
		if err := d.openPages(pages); err != nil {
			return err
		}
	}
	for _, step := range d.steps {
		if err := d.step(ctx, step); err != nil {
			return err
		}
	}
	d.say("\nAll as expected. The cluster is removed.")
	return nil
}

// prepare adds the pods and waits for the agents.
func (d *demo) prepare(ctx context.Context) error {
	checkout := map[string]string{"app": "checkout"}
	pods, err := d.AddPods(
		lab.PodSpec{Node: d.Nodes[0], Namespace: "shop", Name: "checkout-1", Labels: checkout},
		lab.PodSpec{Node: d.Nodes[1], Namespace: "shop", Name: "checkout-2", Labels: checkout},
		lab.PodSpec{
			Node: d.Nodes[0], Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"},
		},
	)
	if err != nil {
		return err
	}
	d.remote, d.local, d.other = pods[0], pods[1], pods[2]
	d.introduce()
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	if err := d.AwaitAgents(ctx); err != nil {
		return err
	}
	for _, p := range pods {
		if err := p.Node.Agent.AwaitAttached(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) introduce() {
	d.say("A cluster in network namespaces of this machine, with an agent on each node:\n")
	rows := [][]string{{"Node", "Inside", "To the outside", "Egress IP", "Pods"}}
	for _, n := range d.Nodes {
		var pods []string
		for _, p := range []*lab.Pod{d.remote, d.local, d.other} {
			if p.Node == n {
				pods = append(pods, fmt.Sprintf("%s (%s)", p.Name, p.IPv4))
			}
		}
		if pods == nil {
			pods = []string{"-"}
		}
		rows = append(rows, []string{
			n.Name, n.IPv4.String(), n.OutsideIPv4.String(), n.EgressIPv4.String(), strings.Join(pods, ", "),
		})
	}
	d.table(rows)
	d.say("\nOutside is a server. It answers at every address of %s which source it sees,\nand has no route to pods.", lab.WorldIPv4)
}

// step shows one step. What is seen is compared with what should be.
func (d *demo) step(ctx context.Context, s demoStep) error {
	if err := d.wait(ctx); err != nil {
		return err
	}
	d.say("\n%s\n%s\n%s", s.title, strings.Repeat("-", len(s.title)), s.text)

	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	if err := s.show(ctx, d); err != nil {
		d.showDrops(ctx)
		return fmt.Errorf("demo, %q: %w", s.title, err)
	}
	if d.wrong > 0 {
		d.showDrops(ctx)
		return fmt.Errorf("demo, %q: what is seen is not as expected", s.title)
	}
	return nil
}

// wait waits for Enter, if that was asked for.
func (d *demo) wait(ctx context.Context) error {
	if d.in == nil {
		return ctx.Err()
	}
	fmt.Fprint(d.out, "\nPress Enter to go on: ")
	read := make(chan error, 1)
	go func() {
		_, err := d.in.ReadString('\n')
		read <- err
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-read:
		if errors.Is(err, io.EOF) {
			d.in, err = nil, nil // there is no terminal
		}
		return err
	}
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }
