// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/lab"
	"github.com/sluice-net/sluice/tables"
)

// The network policy of the demo. Its pods are those of the egress policy.
const demoNetworkPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: checkout
  namespace: shop
spec:
  podSelector: {matchLabels: {app: checkout}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
`

const demoNetworkPolicyName = "shop/checkout"

// silence is for how long a pod that does not answer is waited for.
const silence = time.Second

func showNetworkPolicy(ctx context.Context, d *demo) error {
	server := d.local
	if err := server.Serve(); err != nil {
		return err
	}
	live, err := d.remote.Dial(ctx, "tcp", netip.AddrPortFrom(server.IPv4, lab.Port))
	if err != nil {
		return err
	}
	defer live.Close()
	d.say("")
	d.call(ctx, d.other, server, true)
	d.call(ctx, d.remote, server, true)
	d.callOn(ctx, live, d.remote, server, true)

	if err := d.apply(demoNetworkPolicy); err != nil {
		return err
	}
	if err := d.command(ctx, server.Node, "wait", "policy", demoNetworkPolicyName); err != nil {
		return err
	}
	d.say("")
	d.call(ctx, d.other, server, true)
	d.call(ctx, d.remote, server, false)
	d.callOn(ctx, live, d.remote, server, false)

	d.say("\n  The agent of %s tells why, and by which rule:\n", server.Node.Name)
	if err := d.awaitDrop(ctx, server); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"explain", "policy", d.remote.Name, server.Name, strconv.Itoa(lab.Port)},
		{"rules"},
		{"get", "drops"},
	} {
		if err := d.command(ctx, server.Node, args...); err != nil {
			return err
		}
		d.say("")
	}
	d.say("  Deleting policy %s:\n", demoNetworkPolicyName)
	return d.withoutNetworkPolicy(ctx, server)
}

// withoutNetworkPolicy deletes the policy, after which the pod is reached again.
func (d *demo) withoutNetworkPolicy(ctx context.Context, server *lab.Pod) error {
	policy, err := lab.ParseObjects(demoNetworkPolicy)
	if err != nil {
		return err
	}
	if err := d.Delete(policy...); err != nil {
		return err
	}
	if err := lab.AwaitRows(ctx, server.Node.Agent, "map-subjects", func(
		rows []tables.SubjectMirror,
	) error {
		for _, r := range rows {
			if r.Value.Ruleset > bpf.EmptyRuleset {
				return fmt.Errorf("%s has %s", r.Key, r.Value)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	d.call(ctx, d.remote, server, true)
	return nil
}

// awaitDrop waits until the agent of a pod's node has heard of a packet to it that was dropped.
func (d *demo) awaitDrop(ctx context.Context, p *lab.Pod) error {
	return lab.AwaitRows(ctx, p.Node.Agent, "drops", func(rows []tables.Drop) error {
		for _, r := range rows {
			if r.Pod == p.Name {
				return nil
			}
		}
		return fmt.Errorf("there is none to %s", p.Name)
	})
}

// call has a pod ask another one by a new connection, and says whether there is an answer.
func (d *demo) call(ctx context.Context, from, to *lab.Pod, want bool) {
	ctx, cancel := context.WithTimeout(ctx, patience(want))
	defer cancel()
	_, err := from.Ask(ctx, "tcp", to.IPv4)
	d.reportCall("tcp", from, to, want, err)
}

// callOn is call, by a connection that exists.
func (d *demo) callOn(ctx context.Context, conn net.Conn, from, to *lab.Pod, want bool) {
	ctx, cancel := context.WithTimeout(ctx, patience(want))
	defer cancel()
	_, err := lab.AskOn(ctx, conn)
	d.reportCall("open", from, to, want, err)
}

func patience(answers bool) time.Duration {
	if answers {
		return answerTimeout
	}
	return silence
}

func (d *demo) reportCall(how string, from, to *lab.Pod, want bool, err error) {
	seen, verdict := "answers", ""
	if err != nil {
		seen = "no answer"
	}
	if want != (err == nil) {
		d.wrong++
		verdict = fmt.Sprintf("WRONG: want an answer: %t, error: %v", want, err)
	}
	line := fmt.Sprintf(
		"  %-16s on %s  %-4s  %s:%d  %-10s  %s", from.Name, from.Node.Name, how, to.Name, lab.Port, seen,
		verdict,
	)
	d.say("%s", strings.TrimRight(line, " "))
}

// command shows a command of this program, as it is typed on a node, and what it prints.
func (d *demo) command(ctx context.Context, n *lab.Node, args ...string) error {
	var out bytes.Buffer
	code := run(ctx, append(args, "--server", unixScheme+n.Agent.Socket()), &out, &out)
	d.say("  %s$ sluice %s\n%s", n.Name, strings.Join(args, " "), indent(out.String()))
	if code != exitOK {
		return fmt.Errorf("sluice %s: exit code %d", strings.Join(args, " "), code)
	}
	return nil
}
