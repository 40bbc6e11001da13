// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"hash/fnv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestEgress(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		for _, tc := range []struct {
			from, to string
			answer   string
			detail   string
		}{
			{"shop/client", "198.51.100.10", "allowed to gateway bank (198.51.100.0/24)", ""},
			{"shop/client", "198.51.100.130", "allowed passed bank (198.51.100.128/25)",
				"the policy excludes the destination"},
			{"shop/client", "203.0.113.9", "allowed translated partner (203.0.113.0/24)", ""},
			{"shop/client", "192.0.2.1", "denied no egress gateway partner (192.0.2.0/24)",
				"no node matches role=gateway"},
			{"shop/client", "8.8.8.8", "allowed passed",
				"no policy that selects the pod names the destination"},
			{"shop/client", "shop/db", "allowed passed",
				"egress policies do not apply to the destination: in-cluster,pod"},
			{"shop/client", "10.96.0.10", "allowed passed",
				"egress policies do not apply to the destination: in-cluster,service"},
			{"shop/web", "198.51.100.10", "allowed passed", "no egress policy selects the pod"},
			{"shop/db", "198.51.100.10", "not judged here not from a pod of this node",
				"nor one that this node may be the gateway of"},
		} {
			answer, err := w.Egress(tc.from, tc.to)
			require.NoError(t, err)
			require.Equal(t, tc.answer, string(answer.Verdict)+" "+answer.why(), tc.to)
			require.Equal(t, tc.detail, answer.Detail, tc.to)
			require.Empty(t, answer.Differences, tc.to)
			require.Equal(t, answer.Reason, answer.Kernel.Reason)
			require.Equal(t, answer.Rules, answer.Kernel.Rules, tc.to)
		}
		answer, err := w.Egress("shop/client", "203.0.113.9")
		require.NoError(t, err)
		require.Equal(t, addr("203.0.113.101"), answer.EgressIP)
		require.Equal(t, addr("203.0.113.101"), answer.Kernel.EgressIP)
		require.Equal(t, "eth0", answer.Device)
		require.Equal(t, []string{"bank", "partner"}, answer.Policies)
		answer, err = w.Egress("shop/client", "198.51.100.10")
		require.NoError(t, err)
		require.Equal(t, "node-2", answer.GatewayNode)
		require.Equal(t, addr("192.168.0.2"), answer.Kernel.Gateway)
		require.Equal(t, []string{"partner"}, answer.Overrides)
		require.Equal(t, answer.Entry.Key, answer.Kernel.Entry.Key)

		// Of entries around each other with one gateway, the map says which one it has.
		within := &tables.EgressRule{
			Ruleset: 7, Destination: prefix("198.51.100.0/28"), Group: 1, Policy: "bank",
		}
		both(w, w.EgressRules, w.maps.Egress, within)
		answer, err = w.Egress("shop/client", "198.51.100.10")
		require.NoError(t, err)
		require.Empty(t, answer.Differences)
		require.Equal(t, within.MapKey().String(), answer.Kernel.Entry.Key)
		remove(t, w.maps.Egress, within.MapKey())
		answer, err = w.Egress("shop/client", "198.51.100.10")
		require.NoError(t, err)
		require.Equal(t, []string{"by the tables entry ruleset=7 198.51.100.0/28 -> group=1, " +
			"by the maps ruleset=7 198.51.100.0/24 -> group=1"}, answer.Differences)

		remove(t, w.maps.Routes, bpf.SubjectKey{Subject: subjectClient})
		answer, err = w.Egress("shop/client", "198.51.100.10")
		require.NoError(t, err)
		require.Contains(
			t, answer.Lines(), "kernel: by the tables it is to gateway, by the maps passed",
		)
		require.Contains(t, answer.Lines(), "kernel: by the tables egress ruleset 7, by the maps 0")

		pod := bpf.PodKey{Addr: bpf.AddressFrom(addr("10.1.0.6"))}
		update(t, w.maps.Pods, pod, bpf.PodValue{IfIndex: 12, Flags: bpf.PodLocal})
		answer, err = w.Egress("shop/client", "198.51.100.10")
		require.NoError(t, err)
		require.Equal(t, "pod not ready", answer.Kernel.Reason)
		require.Contains(t, answer.Lines(),
			"kernel: by the tables it is to gateway, by the maps pod not ready")
		answer, err = w.Egress("shop/client", "203.0.113.9")
		require.NoError(t, err)
		require.Equal(t, "passed", answer.Kernel.Reason, "it is not covered")
	})
}

// Of a pod of another node this node decides as its gateway only, and network policies are
// not judged here.
func TestEgressOfOthers(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		both(w, w.Pods, w.maps.Pods, &tables.Pod{
			Addr: addr("10.2.0.5"), Endpoint: name("shop/db"), Subject: 8,
			Reconciled: tables.Done(),
		})
		both(w, w.Subjects, w.maps.Subjects, &tables.Subject{
			Life: tables.Life{Number: 8}, Reconciled: tables.Done(),
		})
		both(w, w.Routes, w.maps.Routes, &tables.SubjectRoute{
			Subject: 8, EgressRuleset: 7, Reconciled: tables.Done(),
		})
		both(w, w.Gateways, w.maps.Gateways, &tables.EgressGateway{
			GatewayKey: bpf.GatewayKey{Group: 2, Bucket: bucketOf(addr("10.2.0.5"))},
			Node:       "node-1",
			Addr:       addr("192.168.0.1"), EgressIPv4: addr("203.0.113.101"), IfIndex: 2,
			Device: "eth0",
		})
		for to, want := range map[string]string{
			"203.0.113.9": "allowed translated partner (203.0.113.0/24)",
			"8.8.8.8":     "denied no egress rule",
			"10.96.0.10":  "denied no egress rule",
		} {
			answer, err := w.Egress("shop/db", to)
			require.NoError(t, err)
			require.Equal(t, want, string(answer.Verdict)+" "+answer.why(), to)
			require.Empty(t, answer.Differences, to)
		}
		answer, err := w.Policy("shop/db", "other/web", "80", "")
		require.NoError(t, err)
		require.Equal(t, NotJudged, answer.Verdict)
		require.Equal(t, ReasonNotHere, answer.Reason)
		require.Equal(t, []string{"node-2"}, answer.Ask)
		require.False(t, answer.From.Here)
	})
}

// Traffic with an egress address that moves leaves by the node that has it, translated here.
func TestEgressByBlock(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		egress := addr("203.0.113.101")
		both(w, w.Gateways, w.maps.Gateways, &tables.EgressGateway{
			GatewayKey: bpf.GatewayKey{Group: 2, Bucket: bucketOf(addr("10.1.0.6"))},
			Node:       "node-2", Addr: egress,
		})
		for _, c := range []struct {
			block tables.EgressBlock
			want  string
		}{
			{tables.EgressBlock{}, "denied no egress gateway"},
			{tables.EgressBlock{Gateway: addr("192.168.0.2")}, "denied no port block"},
			{tables.EgressBlock{
				Gateway: addr("192.168.0.2"), Ports: [4]bpf.PortRange{{First: 1024, Last: 1087}},
			}, "allowed translated"},
		} {
			c.block.Addr = egress
			both(w, w.Blocks, w.maps.Blocks, &c.block)
			answer, err := w.Egress("shop/client", "203.0.113.9")
			require.NoError(t, err)
			require.Equal(t, c.want, string(answer.Verdict)+" "+answer.Reason)
			require.Empty(t, answer.Differences)
			require.Equal(t, egress, answer.EgressIP)
			require.Equal(t, c.block.Gateway, answer.Gateway)
		}
	})
}

// The programs and this package agree on where a sender belongs: see bucket_of.
func TestBucket(t *testing.T) {
	for _, text := range []string{"10.1.0.6", "10.1.0.7", "fd00::5"} {
		h := fnv.New32a()
		bytes := addr(text).As16()
		h.Write(bytes[:])
		require.Equal(t, h.Sum32()%bpf.GatewayBuckets, bucketOf(addr(text)))
	}
}
