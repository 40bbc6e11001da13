// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
)

// forMaps runs a test with maps in memory, and in the kernel if there may be any.
func forMaps(t *testing.T, test func(*testing.T, *world)) {
	t.Run("memory", func(t *testing.T) { test(t, newWorld(t, inMemory(t))) })
	t.Run("kernel", func(t *testing.T) { test(t, newWorld(t, inKernel(t))) })
}

func TestPolicy(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		for _, tc := range []struct{ question, answer string }{
			{"shop/client shop/web 80", `verdict: allowed
egress allowed: no policy chooses the pod
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]`},
			{"shop/client shop/web http", `verdict: allowed
egress allowed: no policy chooses the pod
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]`},
			{"shop/client shop/web 8007/tcp", `verdict: allowed
egress allowed: no policy chooses the pod
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[1]`},
			{"shop/client shop/web 8008/tcp", `verdict: denied
egress allowed: no policy chooses the pod
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"shop/client shop/web 80/udp", `verdict: denied
egress allowed: no policy chooses the pod
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"shop/db shop/web 80", `verdict: denied
ingress denied: denied by rule CiliumNetworkPolicy/shop/no-db spec.ingressDeny[0]`},
			{"10.2.0.5 shop/web 8/icmp", `verdict: denied
ingress denied: denied by rule CiliumNetworkPolicy/shop/no-db spec.ingressDeny[0]`},
			{"world shop/web icmp:8", `verdict: allowed
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]`},
			{"203.0.113.9 shop/web gre", `verdict: denied
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"cluster shop/web 80", `verdict: denied
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"remote-node 10.1.0.5 80", `verdict: denied
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"kube-apiserver 10.1.0.5 80", `verdict: denied
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"host shop/web 80", `verdict: allowed
ingress allowed: host reaches its pods`},
			{"shop/web 203.0.113.9 443", `verdict: allowed
egress allowed: default allow`},
			{"shop/web 169.254.169.254 80", `verdict: allowed
egress allowed: default allow`},
			{"shop/web 224.0.0.1 80", `verdict: allowed
egress allowed: multicast and broadcast are not judged`},
			{"world-ipv6 shop/web 80", `verdict: denied
ingress denied: pod not ready`},
			{"shop/web 10.1.0.5 81", `verdict: allowed
what it sends to itself does not leave it`},
			{"shop/db other/web 80", `verdict: allowed
neither is a pod of this node`},
			{"shop/web 10.96.0.10 443", `verdict: allowed
egress allowed: service: judged after translation
backend 10.1.0.5:80: egress allowed: default allow
backend 10.1.0.5:80: ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"shop/web 10.96.0.11 5432", `verdict: allowed
egress allowed: service: judged after translation
backend 10.1.0.6:15432: egress allowed: default allow
backend 10.1.0.6:15432: ingress allowed: no policy chooses the pod
backend 10.2.0.5:15432: egress allowed: default allow`},
			{"shop/client 10.96.0.10 443", `verdict: allowed
egress allowed: no policy chooses the pod
backend 10.1.0.5:80: egress allowed: no policy chooses the pod
backend 10.1.0.5:80: ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]`},
			{"world 10.96.0.10 443", `verdict: denied
backend 10.1.0.5:80: ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"shop/web 10.96.0.12 80", `verdict: allowed
egress allowed: service: judged after translation`},
		} {
			q := strings.Fields(tc.question)
			if q[0] == "shop/web" && q[1] == "10.96.0.10" { // its only backend does not let itself in
				tc.answer = "verdict: denied" + strings.TrimPrefix(tc.answer, "verdict: allowed")
			}
			answer, err := w.Policy(q[0], q[1], q[2], "")
			require.NoError(t, err, tc.question)
			require.Equal(t, tc.answer+"\nkernel: same", strings.Join(answer.Lines(), "\n"), tc.question)
			require.Equal(t, answer.Verdict, answer.Kernel.Verdict, tc.question)
			require.Equal(t, answer.Reason, answer.Kernel.Reason, tc.question)
			require.Equal(t, answer.Rules, answer.Kernel.Rules, tc.question)
			if answer.Entry != nil {
				require.Equal(t, answer.Entry.Key, answer.Kernel.Entry.Key, tc.question)
				require.Equal(t, answer.Entry.Value, answer.Kernel.Entry.Value, tc.question)
			}
		}
	})
}

func TestPolicyJSON(t *testing.T) {
	w := newWorld(t, inMemory(t))
	selector, err := tables.NewSelector(tables.PeerSelector(tables.PolicyPeer{
		Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: "app=client"},
	}), tables.Resolution{})
	require.NoError(t, err)
	insert(w, w.Selectors, selector)
	insert(w, w.Members, &tables.ClassMember{Role: bpf.RolePeer, OfClass: true, Class: peerClient, Selectors: []tables.SelectorID{selector.ID}})
	answer, err := w.Policy("shop/client", "shop/web", "80", "tcp")
	require.NoError(t, err)
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, "allowed", got["verdict"])
	require.Equal(t, "allowed by rule", got["reason"])
	require.Equal(t, []any{map[string]any{"policy": "NetworkPolicy/shop/web", "field": "spec.ingress[0]", "verdict": "allow"}}, got["rules"])
	require.Equal(t, "subject=1 peer=12 ingress protocol=6 port=80", got["entry"].(map[string]any)["key"])
	require.Equal(t, "Done", got["entry"].(map[string]any)["status"])
	require.Equal(t, []any{selector.Text}, got["from"].(map[string]any)["peerSelectors"])
	require.Equal(t, "10.1.0.6", got["from"].(map[string]any)["address"])
	kernel := got["kernel"].(map[string]any)
	require.Equal(t, "memory", kernel["backend"])
	for _, field := range []string{"verdict", "reason", "rules"} {
		require.Equal(t, got[field], kernel[field], field)
	}
	require.Equal(t, []any{}, got["differences"])

	w.Live = nil
	answer, err = w.Policy("shop/client", "shop/web", "80", "tcp")
	require.NoError(t, err)
	require.Nil(t, answer.Kernel)
	require.Equal(t, Allowed, answer.Verdict)
}

// What the maps have otherwise than the tables is told, whatever it is.
func TestDifferences(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		says := func(question string, want ...string) {
			t.Helper()
			q := strings.Fields(question)
			answer, err := w.Policy(q[0], q[1], q[2], "")
			require.NoError(t, err)
			require.Equal(t, want, answer.AllDifferences())
			require.Contains(t, answer.Lines(), "kernel: "+want[0])
		}
		key := bpf.PolicyKeyOf(subjectWeb, peerClient, bpf.DirectionIngress, 6, 80, 16)
		_, err := w.maps.Policy.Update([]bpf.PolicyKey{key}, []bpf.PolicyValue{{Precedence: bpf.PrecedenceDeny, Deny: 1, Cookie: 99}})
		require.NoError(t, err)
		says("shop/client shop/web 80",
			"ingress: by the tables allowed (allowed by rule NetworkPolicy/shop/web spec.ingress[0]), by the maps denied (denied by rule unknown cookie 99)")
		_, err = w.maps.Policy.Delete([]bpf.PolicyKey{key})
		require.NoError(t, err)
		says("shop/client shop/web 80",
			"ingress: by the tables allowed (allowed by rule NetworkPolicy/shop/web spec.ingress[0]), by the maps denied (default deny NetworkPolicy/shop/web spec.ingress)")
		_, err = w.maps.Policy.Delete([]bpf.PolicyKey{bpf.PolicyKeyOf(subjectWeb, 0, bpf.DirectionIngress, 0, 0, 0)})
		require.NoError(t, err)
		says("world shop/web 80", "ingress: by the tables denied (default deny NetworkPolicy/shop/web spec.ingress), by the maps denied (no entry)")

		insert(w, w.IPCache, &tables.IPCache{Prefix: prefix("203.0.113.9/32"), PeerClass: peerDB, Reconciled: tables.Pending()})
		says("203.0.113.9 shop/web 80",
			"ingress: by the tables denied (denied by rule CiliumNetworkPolicy/shop/no-db spec.ingressDeny[0]), by the maps denied (no entry)",
			"ingress: by the tables peer class 13, by the maps 10")
		_, err = w.maps.Pods.Delete([]bpf.PodKey{{Addr: bpf.AddressFrom(addr("10.1.0.6"))}})
		require.NoError(t, err)
		says("shop/web 10.96.0.11 5432",
			"backend 10.1.0.6:15432: ingress: by the tables allowed (no policy chooses the pod), by the maps not judged: the pod is not in sluice_pods")
		_, err = w.maps.Config.Update([]bpf.ConfigKey{{}}, []bpf.ConfigValue{{VNI: 7}})
		require.NoError(t, err)
		says("host shop/web 80", "ingress: by the tables allowed (host reaches its pods), by the maps denied (no entry)")
	})
}

func TestEgress(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		for _, tc := range []struct {
			from, to string
			answer   string
			detail   string
		}{
			{"shop/client", "198.51.100.10", "allowed to gateway bank (198.51.100.0/24)", ""},
			{"shop/client", "198.51.100.130", "allowed passed bank (198.51.100.128/25)", "the policy excludes the destination"},
			{"shop/client", "203.0.113.9", "allowed translated partner (203.0.113.0/24)", ""},
			{"shop/client", "192.0.2.1", "denied no egress gateway partner (192.0.2.0/24)", "no node matches role=gateway"},
			{"shop/client", "8.8.8.8", "allowed passed", "no policy that chooses the pod names the destination"},
			{"shop/client", "shop/db", "allowed passed", "the destination is no business of egress policies: in-cluster,pod"},
			{"shop/client", "10.96.0.10", "allowed passed", "the destination is no business of egress policies: in-cluster,service"},
			{"shop/web", "198.51.100.10", "allowed passed", "no egress policy chooses the pod"},
			{"shop/db", "198.51.100.10", "allowed passed", "not a pod of this node, nor one that this node may be the gateway of"},
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

		_, err = w.maps.Sources.Delete([]bpf.SourceKey{{Addr: bpf.AddressFrom(addr("10.1.0.6"))}})
		require.NoError(t, err)
		answer, err = w.Egress("shop/client", "198.51.100.10")
		require.NoError(t, err)
		require.Equal(t, "pod not ready", answer.Kernel.Reason)
		require.Contains(t, answer.Lines(), "kernel: by the tables it is to gateway, by the maps pod not ready")
		answer, err = w.Egress("shop/client", "203.0.113.9")
		require.NoError(t, err)
		require.Equal(t, "passed", answer.Kernel.Reason, "it is not covered")
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

// A question costs look-ups, on however many rows.
func BenchmarkPolicy(b *testing.B) {
	for _, backend := range []struct {
		name string
		open func(testing.TB) *bpf.Maps
	}{{"memory", inMemory}, {"kernel", inKernel}} {
		b.Run(backend.name, func(b *testing.B) {
			w := newWorld(b, backend.open(b))
			var rows []*tables.IPCache
			for i := range 50_000 {
				a := addr("10.128.0.0").As4()
				a[1], a[2], a[3] = byte(128+i>>16), byte(i>>8), byte(i)
				rows = append(rows, &tables.IPCache{Prefix: single(netip.AddrFrom4(a))[0], PeerClass: uint32(i % 200)})
			}
			both(w, w.IPCache, w.maps.IPCache, rows...)
			for _, question := range []string{"shop/client shop/web 80", "world shop/web 443"} {
				q := strings.Fields(question)
				b.Run(q[0], func(b *testing.B) {
					for b.Loop() {
						answer, err := w.Policy(q[0], q[1], q[2], "tcp")
						if err != nil || len(answer.Differences) > 0 {
							b.Fatal(err, answer.Differences)
						}
					}
				})
			}
		})
	}
}

// Whatever the entries, this package finds the verdict that [policy.Lookup]
// says the programs find, in the tables and in the maps.
func TestLookUp(t *testing.T) {
	for _, maps := range []struct {
		name string
		open func(testing.TB) *bpf.Maps
	}{{"memory", inMemory}, {"kernel", inKernel}} {
		t.Run(maps.name, func(t *testing.T) {
			w := newWorld(t, maps.open(t))
			rnd := rand.New(rand.NewPCG(1, 2))
			entries := map[bpf.PolicyKey]bpf.PolicyValue{}
			for range 200 {
				bits := rnd.IntN(17)
				protocol := []uint8{0, 1, 6, 17, 47}[rnd.IntN(5)]
				if protocol == 47 {
					bits = 0
				}
				key := bpf.PolicyKeyOf(9, rnd.Uint32N(3), bpf.Direction(rnd.IntN(2)), protocol, uint16(rnd.UintN(1<<16)), bits)
				value := bpf.PolicyValue{Precedence: rnd.Uint32N(3), Deny: uint8(rnd.IntN(2)), Cookie: rnd.Uint32()}
				entries[key] = value
				both(w, w.Entries, w.maps.Policy, &tables.PolicyEntry{Key: key, Value: value})
			}
			get := func(k bpf.PolicyKey) (v bpf.PolicyValue, ok bool) { v, ok = entries[k]; return v, ok }
			hits := 0
			for range 3000 {
				peer, direction := rnd.Uint32N(3), bpf.Direction(rnd.IntN(2))
				traffic := Traffic{Protocol: []uint8{1, 6, 17, 47, 132}[rnd.IntN(5)], Port: uint16(rnd.UintN(1 << 16))}
				if traffic.Protocol == 47 {
					traffic.Port = 0
				}
				value, key, found := policy.Lookup(get, 9, peer, direction, traffic.Protocol, traffic.Port)
				txn := w.DB.ReadTxn()
				maps := &present{Explainer: w.Explainer, txn: txn}
				for _, v := range []view{&wanted{w.Explainer, txn}, maps} {
					d := lookUp(v, 9, peer, direction, traffic)
					require.Equal(t, found, d.Entry != nil)
					if !found {
						require.Equal(t, Denied, d.Verdict)
						continue
					}
					hits++
					require.Equal(t, value.Deny != 0, d.Verdict == Denied)
					require.Equal(t, value.String(), d.Entry.Value)
					require.Equal(t, key.String(), d.Entry.Key)
				}
				require.NoError(t, maps.failed())
			}
			require.Greater(t, hits, 1000)
		})
	}
}
