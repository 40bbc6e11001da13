// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// Pods whose objects are deleted by force, while their containers and devices live on, stay
// under their policies: by their last label set while the agent runs, isolated by one that has
// started since. So does the old container when another pod has got its address.
func TestPolicyForgottenPod(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options Options
		plugin  bool // there are files of the CNI plugin about the pods
	}{
		"routed": {}, "bridge": {options: Options{BridgeCNI: true}}, "plugin": {plugin: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testForgottenPod(t, tc.options, tc.plugin)
		})
	}
}

const forgottenPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {matchLabels: {app: closed}}, policyTypes: [Ingress, Egress]}
`

func testForgottenPod(t *testing.T, options Options, plugin bool) {
	p := newPolicyTest(t, options)
	n1, n2 := p.Nodes[0], p.Nodes[1]
	p.policy(
		egress{name: "bank4", app: "bank", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n1.Name, ip: n1.EgressIPv4}}},
		egress{name: "bank6", app: "bank", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	pods := p.addPods(
		PodSpec{Node: n1, Namespace: "shop", Name: "closed", Labels: map[string]string{"app": "closed"}},
		PodSpec{Node: n1, Namespace: "shop", Name: "bank", Labels: map[string]string{"app": "bank"}},
	)
	closed, bank := pods[0], pods[1]
	p.inForce([]string{"bank4", "bank6"}, bank)
	var cni *cniPlugin
	if plugin {
		cni = buildPlugin(t)
		cni.follow(p.Cluster)
		require.NoError(t, n1.Agent.Restart())
		for _, pod := range pods {
			require.NoError(t, cni.call("ADD", pod, "30s"))
		}
	}
	p.drops.close() // it would end with the agent
	p.apply(parsed(t, forgottenPolicies)...)
	p.settled(n1)
	p.traffic.becomes(bank.Namespace, ServerIPv4, n1.EgressIPv4)
	p.traffic.becomes(bank.Namespace, ServerIPv6, n2.EgressIPv6)

	forbidden := p.startProbes(200, p.toAndFromClosed()...)
	p.passed(forbidden, 100)

	require.NoError(t, p.Delete(closed.Object(), bank.Object()))
	p.unknown(n1, pods...)
	p.unknown(n2, pods...)
	p.passed(forbidden, 400)
	p.sees(bank.Namespace, ServerIPv4, n1.EgressIPv4)

	require.NoError(t, n1.Agent.Stop())
	p.passed(forbidden, 200)
	require.NoError(t, n1.Agent.Start())
	require.NoError(t, n1.Agent.AwaitReady(p.ctx))
	p.settled(n1)
	p.passed(forbidden, 400)
	forbidden.end(p, noLoss)
	// Now the pods are isolated.
	forbidden = p.startProbes(200, append(p.toAndFromClosed(), p.forbidden("bank", "world"))...)
	p.passed(forbidden, 400)
	p.attachedTo(n1, pods...)

	if !options.BridgeCNI { // where two would answer for the address
		successor := p.addPods(PodSpec{
			Node: n1, Namespace: "shop", Name: "successor", Labels: map[string]string{"app": "successor"},
			IPv4: closed.IPv4, IPv6: closed.IPv6,
		})[0]
		if plugin {
			require.NoError(t, cni.call("ADD", successor, "30s"))
		}
		require.NoError(t, n1.Agent.AwaitAttached(p.ctx, successor))
		p.eventually("the successor has the address", func() error {
			return p.callOf("successor near tcp4/80").try(p.ctx)
		})
		p.passed(forbidden, 400)
		p.attachedTo(n1, closed, successor)
		p.removePods(successor)
	}
	forbidden.end(p, noLoss)

	require.NoError(t, p.Apply(bank.Object()))
	p.traffic.becomes(bank.Namespace, ServerIPv4, n1.EgressIPv4)
	p.traffic.becomes(bank.Namespace, ServerIPv6, n2.EgressIPv6)
	p.noLeaks(n1.EgressIPv4, n2.EgressIPv6)

	// When the devices go, so do the programs.
	p.removePods(closed)
	p.eventually("nothing is attached for the pod", func() error {
		rows, err := Rows[attachment](p.ctx, n1.Agent, "attachments")
		if slices.ContainsFunc(rows, func(a attachment) bool { return a.Device == closed.HostDevice }) {
			err = fmt.Errorf("%v", rows)
		}
		return err
	})
}

func noLoss() uint64 { return 0 }

func (p *policyTest) toAndFromClosed() []*flowProbe {
	return []*flowProbe{
		p.forbidden("closed", "near"), p.forbidden("closed", "far"), p.forbidden("closed", "world"),
		p.forbidden("near", "closed"), p.forbidden("far", "closed"),
	}
}

func (p *policyTest) forbidden(from, to string) *flowProbe {
	p.t.Helper()
	src, dst := p.place(from), p.place(to)
	return &flowProbe{name: from + " to " + to, from: src.Namespace, src: src.ipv4, dst: dst.ipv4}
}

// passed waits until each probe has sent more packets, and asserts that none came.
func (p *policyTest) passed(probes *flowProbes, more uint64) {
	p.t.Helper()
	for _, f := range probes.all {
		until := f.sent.Load() + more
		p.eventually(fmt.Sprintf("%s has sent %d packets more", f.name, more), func() error {
			if n := f.sent.Load(); n < until {
				return fmt.Errorf("it lacks %d", until-n)
			}
			return nil
		})
		require.Zero(p.t, f.got(), "%s: what is forbidden came", f)
	}
}

// unknown waits until the agent of a node knows nothing of the objects of pods.
func (p *policyTest) unknown(n *Node, pods ...*Pod) {
	p.t.Helper()
	require.NoError(p.t, AwaitRows(p.ctx, n.Agent, "endpoints", func(rows []tables.Name) error {
		for _, pod := range pods {
			if slices.Contains(rows, tables.Name{Namespace: pod.Spec.Namespace, Name: pod.Spec.Name}) {
				return fmt.Errorf("%s is known", pod.Name)
			}
		}
		return nil
	}))
	require.NoError(p.t, n.Agent.AwaitSettled(p.ctx))
}

// settled waits until the kernel has what an agent wants that has started.
func (p *policyTest) settled(n *Node) {
	p.t.Helper()
	require.NoError(p.t, n.Agent.AwaitSettled(p.ctx))
	require.NoError(p.t, n.Agent.AwaitAttached(p.ctx))
}

// attachedTo asserts that programs run at the devices of pods.
func (p *policyTest) attachedTo(n *Node, pods ...*Pod) {
	p.t.Helper()
	rows, err := Rows[attachment](p.ctx, n.Agent, "attachments")
	require.NoError(p.t, err)
	for _, pod := range pods {
		for _, program := range []string{"from_pod", "to_pod"} {
			require.True(p.t, slices.ContainsFunc(rows, func(a attachment) bool {
				return a.Device == pod.HostDevice && a.Program == program
			}), "%s of %s: %v", program, pod.Name, rows)
		}
	}
}
