// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

const (
	movingIP    = "192.0.2.200" // the only address of the pool
	movingCount = 20            // connections that talk all the time
	bystander   = "worker-1"    // a node that votes, but is no gateway
)

// testEgressIPs has pods leave with an address that moves between two gateways, as
// agents are replaced, and its gateway is drained, cut off and powered off: nodes vote,
// and Kubernetes does not have to notice. No connection ends, and the server outside
// gets no packet with another address. Pool and policy stay: testUninstall finds the
// address at no node.
func testEgressIPs(t *testing.T) {
	upgradeChart(t, "--set=flags.egress-ips=true")
	awaitRollout(t, "daemonset/sluice", "deployment/sluice-operator")
	apply(t, pod("pool-send", "worker-1", "moving", "send",
		"-interval=20ms", "-timeout=100ms", outside))
	waitFor(t, shop, "condition=Ready", "pod/pool-send")
	start := time.Now()
	createPool(t)
	logFirst(t, "pool-send", start)
	awaitVoters(t)
	apply(t, pod("moving-hold", "worker-1", "moving", "hold", "-interval=100ms",
		fmt.Sprintf("-connections=%d", movingCount), outside)+
		pod("moving-send", "worker-1", "moving", "send", "-timeout=500ms", outside))
	waitFor(t, shop, "condition=Ready", "pod/moving-hold", "pod/moving-send")
	awaitMoving(t, "at first")
	strays := countStrays(t)

	owner := awaitOwner(t, func(node string) bool { return node != "" })
	for _, event := range []struct {
		name        string
		begin, undo func()
		stays       bool // the address, at its node
	}{
		{name: "the agents are replaced", stays: true, begin: func() {
			kubectl(t, "-n", sluiceNamespace, "rollout", "restart", "daemonset/sluice")
			awaitRollout(t, "daemonset/sluice")
		}},
		{name: "the gateway is drained",
			begin: func() { run(t, filepath.Join(options.Bin, "sluice"), "gateway", "drain", owner) },
			undo:  func() { run(t, filepath.Join(options.Bin, "sluice"), "gateway", "undrain", owner) },
		},
		{name: "the gateway's link is cut",
			begin: func() { require.NoError(t, running.Node(owner).SetLink(false)) },
			undo:  func() { require.NoError(t, running.Node(owner).SetLink(true)) },
		},
		{name: "the gateway has no power",
			begin: func() { require.NoError(t, running.Node(owner).PowerOff(t.Context())) },
			undo:  func() { require.NoError(t, running.Node(owner).Boot(t.Context())) },
		},
	} {
		start := time.Now()
		event.begin()
		if event.stays {
			awaitOwner(t, func(node string) bool { return node == owner })
		} else {
			other := awaitOwner(t, func(node string) bool { return node != "" && node != owner })
			t.Logf("%s: another node has the address after %.1f s", event.name,
				ownerSince(t, other).Sub(start).Seconds())
		}
		awaitMoving(t, event.name)
		logPauses(t, event.name, start)
		requireMovingGoesOn(t, event.name)
		if event.undo == nil {
			continue
		}
		start = time.Now()
		event.undo()
		awaitOwner(t, func(node string) bool { return node == owner })
		t.Logf("undone: %s has the address again after %.1f s", owner,
			ownerSince(t, owner).Sub(start).Seconds())
		awaitMoving(t, event.name+", undone")
		logPauses(t, "undone", start)
		requireMovingGoesOn(t, event.name+", undone")
	}

	requireUndisturbed(t, "moving-hold", movingIP, trafficLog(t, "moving-hold"))
	assert.Zero(t, strays(), "packets to the server outside with another source")
	sources := running.Outside.Sources("moving-")
	t.Logf("the server has seen %v", sources)
	assert.Len(t, sources, 1, "addresses that the server has seen: %v", sources)
	kubectl(t, "-n", shop, "delete", "pod", "moving-hold", "moving-send")
	// Those of the node that was off run again, too. Some have ended before.
	waitFor(t, shop, "condition=Ready", "pod", "--field-selector=status.phase=Running")
}

// createPool makes a pool that two nodes may have the address of, and a policy to
// which the operator gives the address.
func createPool(t *testing.T) {
	t.Helper()
	kubectl(t, "label", "node", "worker-2", "worker-3", "moving-gateway=true", "--overwrite")
	apply(t, `
apiVersion: sluice.io/v1alpha1
kind: EgressIPPool
metadata: {name: moving}
spec: {cidrs: [`+movingIP+`/32]}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: moving, annotations: {sluice.net/egress-ip-pool: moving}}
spec:
  selectors: [{podSelector: {matchLabels: {app: moving}}}]
  destinationCIDRs: [203.0.113.0/24]
  egressGateway: {nodeSelector: {matchLabels: {moving-gateway: "true"}}}
`)
	waitFor(t, "", "condition=BlocksAssigned", "egressippool/moving")
	waitFor(t, "", "condition=AddressesAssigned", "egressippool/moving")
	waitFor(t, "", "condition=Programmed", "ciliumegressgatewaypolicy/moving")
	nodes := strings.Fields(read(t, "", "{.status.blocks[*].node}", "egressippool", "moving"))
	assert.ElementsMatch(t, []string{"worker-1", "worker-2", "worker-3"}, nodes, "nodes with ports")
	assert.Equal(t, movingIP+" moving", read(t, "",
		"{.status.allocations[*].address} {.status.allocations[*].policy}", "egressippool", "moving"))
}

// logFirst logs how long after a time the server outside got the first request of a pod with the
// address, and that there was none with another address from the first one on.
func logFirst(t *testing.T, name string, start time.Time) {
	t.Helper()
	await(t, "a request with the address", func() error {
		if running.Outside.Sources(name)[movingIP] == 0 {
			return fmt.Errorf("there are none: %v", running.Outside.Sources(name))
		}
		return nil
	})
	var first time.Time
	for _, request := range running.Outside.Requests(name) {
		if request.From.String() == movingIP && first.IsZero() {
			first = request.Time
		} else if !first.IsZero() {
			require.Equal(t, movingIP, request.From.String(), "after the first request with the address")
		}
	}
	t.Logf("the first request with the address of a new pool came %.2f s after kubectl began",
		first.Sub(start).Seconds())
	kubectl(t, "-n", shop, "delete", "pod", name)
}

// awaitVoters waits until all nodes vote, and have said in their NodeReports that they
// know that.
func awaitVoters(t *testing.T) {
	t.Helper()
	await(t, "all nodes vote", func() error {
		var voters tables.EgressVotersInObject
		text := read(t, sluiceNamespace, "{.items[*].data."+tables.EgressVotersKey+"}", "configmaps",
			"--field-selector=metadata.name="+tables.EgressVotersName)
		if text == "" {
			return fmt.Errorf("there is no ConfigMap %s", tables.EgressVotersName)
		}
		if err := json.Unmarshal([]byte(text), &voters); err != nil {
			return fmt.Errorf("parse ConfigMap %s: %w", tables.EgressVotersName, err)
		}
		if len(voters.Sets) != 1 || len(voters.Sets[0].Voters) != len(running.Nodes) {
			return fmt.Errorf("of %d nodes these vote: %v", len(running.Nodes), voters.Sets)
		}
		known := read(t, "", "{.items[*].status.egressVoters}", "nodereports")
		want := slices.Repeat([]string{fmt.Sprint(voters.Generation)}, len(running.Nodes))
		if !slices.Equal(strings.Fields(known), want) {
			return fmt.Errorf("NodeReports have generations %q of voters, want %q", known, want)
		}
		return nil
	})
}

// awaitOwner waits until the node that has the address, as it has told all others, is
// one wanted.
func awaitOwner(t *testing.T, wanted func(node string) bool) (node string) {
	t.Helper()
	await(t, "a node has the address", func() error {
		for _, ip := range rows[tables.EgressIP](t, bystander, "egress-ips") {
			if node = ip.Owner; ip.Addr.String() == movingIP && wanted(node) {
				return nil
			}
		}
		return fmt.Errorf("the node that has it is %q", node)
	})
	return node
}

// ownerSince returns when a node got the address.
func ownerSince(t *testing.T, node string) (since time.Time) {
	t.Helper()
	for _, lease := range rows[tables.EgressIPLease](t, node, "egress-ip-leases") {
		if lease.Addr.String() != movingIP {
			continue
		}
		require.True(t, lease.Held, "%s: %+v", node, lease)
		beginning := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		return beginning.Add(time.Duration(lease.Generation) * 100 * time.Millisecond)
	}
	require.Fail(t, "the node may not have the address", node)
	return since
}

// movingRequests are the times of the requests that came over the connections, by
// connection, from some time on.
func movingRequests(start time.Time) map[string][]time.Time {
	times := map[string][]time.Time{}
	for _, request := range running.Outside.Requests("moving-hold-") {
		if !request.Time.Before(start) {
			times[request.Name] = append(times[request.Name], request.Time)
		}
	}
	return times
}

// awaitMoving waits until all connections go on, and new ones can be made.
func awaitMoving(t *testing.T, when string) {
	t.Helper()
	start := time.Now()
	await(t, "all connections go on: "+when, func() error {
		if talking := len(movingRequests(start)); talking != movingCount {
			return fmt.Errorf("%d of %d do", talking, movingCount)
		}
		for _, request := range running.Outside.Requests("moving-send") {
			if request.Time.After(start) && request.Protocol == "tcp" {
				return nil
			}
		}
		return fmt.Errorf("there is no new one since %s", start.Format(time.TimeOnly))
	})
}

// requireMovingGoesOn fails if a connection has ended: then its pod is restarted.
func requireMovingGoesOn(t *testing.T, when string) {
	t.Helper()
	if restarts := read(t, shop, restartsPath, "pod", "moving-hold"); restarts != "0" {
		t.Log(kubectl(t, "-n", shop, "logs", "--previous", "--tail=20", "moving-hold"))
		t.Log(read(t, shop, "{.status.containerStatuses[*].lastState}", "pod", "moving-hold"))
		require.Fail(t, "a connection has ended", when)
	}
}

// logPauses logs for how long the connections were silent, each at the worst, from
// a time on at which they talked.
func logPauses(t *testing.T, when string, start time.Time) {
	t.Helper()
	var pauses []time.Duration
	for _, times := range movingRequests(start) {
		longest, last := time.Duration(0), start
		for _, at := range times {
			longest, last = max(longest, at.Sub(last)), at
		}
		pauses = append(pauses, longest)
	}
	slices.Sort(pauses)
	t.Logf("%s: all %d connections go on; the longest pause of each: %.1f s median, %.1f s at most",
		when, len(pauses), pauses[len(pauses)/2].Seconds(), pauses[len(pauses)-1].Seconds())
}

// countStrays has the kernel of the server outside count packets to the server that
// do not have the address that moves. The function returned returns how many came.
func countStrays(t *testing.T) (count func() int) {
	t.Helper()
	iptables := func(args ...string) string {
		return run(t, append([]string{"ip", "netns", "exec", "outside", "iptables"}, args...)...)
	}
	rule := []string{"INPUT", "!", "--source", movingIP, "--jump", "ACCEPT"}
	iptables(append([]string{"--insert"}, rule...)...)
	return func() (packets int) {
		listed := strings.Split(iptables("-nvxL", "INPUT"), "\n")
		require.Greater(t, len(listed), 2)
		_, err := fmt.Sscan(listed[2], &packets)
		require.NoError(t, err, listed[2])
		iptables(append([]string{"--delete"}, rule...)...)
		return packets
	}
}
