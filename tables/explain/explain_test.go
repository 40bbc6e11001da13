// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/tables/verdicts"
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
egress allowed: no policy selects the pod
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]`},
			{"shop/client shop/web http", `verdict: allowed
egress allowed: no policy selects the pod
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]`},
			{"shop/client shop/web 8007/tcp", `verdict: allowed
egress allowed: no policy selects the pod
ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[1]`},
			{"shop/client shop/web 8008/tcp", `verdict: denied
egress allowed: no policy selects the pod
ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"shop/client shop/web 80/udp", `verdict: denied
egress allowed: no policy selects the pod
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
egress allowed: default allow
leaves: allowed passed`},
			{"shop/web 169.254.169.254 80", `verdict: allowed
egress allowed: default allow`},
			{"shop/web 224.0.0.1 80", `verdict: allowed
egress allowed: default allow
leaves: allowed passed`},
			{"world-ipv6 shop/web 80", `verdict: denied
ingress denied: pod not ready`},
			{"shop/web 10.1.0.5 81", `verdict: allowed
what it sends to itself does not leave it`},
			{"shop/db other/web 80", `verdict: not judged here
neither is a pod of this node
ask: node-2`},
			{"shop/web 10.96.0.10 443", `verdict: allowed
egress allowed: service: judged after translation
backend 10.1.0.5:80: egress allowed: default allow
backend 10.1.0.5:80: ingress denied: default deny NetworkPolicy/shop/web spec.ingress`},
			{"shop/web 10.96.0.11 5432", `verdict: allowed
egress allowed: service: judged after translation
backend 10.1.0.6:15432: egress allowed: default allow
backend 10.1.0.6:15432: ingress allowed: no policy selects the pod
backend 10.2.0.5:15432: egress allowed: default allow
ask: node-2`},
			{"shop/client 10.96.0.10 443", `verdict: allowed
egress allowed: no policy selects the pod
backend 10.1.0.5:80: egress allowed: no policy selects the pod
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
	selector := &tables.Selector{
		Life: tables.Life{Number: 3},
		SelectorSpec: tables.SelectorSpecs([]tables.PolicyPeer{
			{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: "app=client"}},
		})[0],
	}
	tablestest.Insert(w.t, w.DB, w.Selectors, selector)
	tablestest.Insert(w.t, w.DB, w.Classes, &tables.Class{
		Life: tables.Life{Number: classClient}, Digest: bpf.Digest{classClient}, Selectors: []uint32{3},
	})
	answer, err := w.Policy("shop/client", "shop/web", "80", "tcp")
	require.NoError(t, err)
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, "allowed", got["verdict"])
	require.Equal(t, "allowed by rule", got["reason"])
	require.Equal(t, []any{map[string]any{"policy": "NetworkPolicy/shop/web",
		"field": "spec.ingress[0]", "verdict": "allow"}}, got["rules"])
	require.Equal(t, "ruleset=5 class=12 ingress", got["pair"].(map[string]any)["key"])
	require.Equal(t, "set=3", got["pair"].(map[string]any)["value"])
	require.Equal(t, "set=3 protocol=6 port=80/16", got["entry"].(map[string]any)["key"])
	require.Equal(t, "Done", got["entry"].(map[string]any)["status"])
	require.Equal(t, []any{selector.Text}, got["from"].(map[string]any)["peerSelectors"])
	require.Equal(t, "10.1.0.6", got["from"].(map[string]any)["address"])
	require.EqualValues(t, memberOf(classClient), got["from"].(map[string]any)["member"])
	require.EqualValues(t, classClient, got["from"].(map[string]any)["class"])
	to := got["to"].(map[string]any)
	require.EqualValues(t, subjectWeb, to["subject"])
	require.EqualValues(t, rulesetWeb, to["ruleset"])
	require.Equal(
		t, []any{"CiliumNetworkPolicy/shop/no-db", "NetworkPolicy/shop/web"}, to["policies"],
	)
	kernel := got["kernel"].(map[string]any)
	require.Equal(t, "memory", kernel["backend"])
	require.Equal(t, kernel["slotInForce"], kernel["slotOwn"])
	for _, field := range []string{"verdict", "reason", "rules"} {
		require.Equal(t, got[field], kernel[field], field)
	}
	require.Equal(t, []any{}, got["differences"])

	w.Explainer.maps = nil
	answer, err = w.Policy("shop/client", "shop/web", "80", "tcp")
	require.NoError(t, err)
	require.Nil(t, answer.Kernel)
	require.Equal(t, Allowed, answer.Verdict)
}

// Every difference of the maps from the tables is reported.
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
		allowed := "ingress: by the tables allowed (allowed by rule NetworkPolicy/shop/web spec.ingress[0]), by the maps denied "
		key := bpf.VerdictKeyOf(3, 6, 80, 16)
		update(t, w.maps.Verdicts, key, bpf.VerdictValue{Deny: 1, Cookie: 99})
		says("shop/client shop/web 80", allowed+"(denied by rule unknown cookie 99)")
		remove(t, w.maps.Verdicts, key)
		says(
			"shop/client shop/web 80", allowed+"(default deny NetworkPolicy/shop/web spec.ingress)",
		)
		remove(t, w.maps.Verdicts, bpf.VerdictKeyOf(3, 0, 0, 0))
		says("shop/client shop/web 80", allowed+"(no entry)")
		remove(t, w.maps.Policy, bpf.PolicyKey{
			Ruleset: rulesetWeb, Direction: bpf.DirectionIngress,
		})
		says("world shop/web 80",
			"ingress: by the tables denied (default deny NetworkPolicy/shop/web spec.ingress), by the maps denied (no entry)")

		tablestest.Insert(w.t, w.DB, w.IPCache, &tables.IPCache{
			Prefix: prefix("203.0.113.9/32"), Member: memberOf(classDB),
		})
		says("203.0.113.9 shop/web 80",
			"ingress: by the tables denied (denied by rule CiliumNetworkPolicy/shop/no-db "+
				"spec.ingressDeny[0]), by the maps denied (no entry)",
			"ingress: by the tables member 113, by the maps 110",
			"ingress: by the tables class 13, by the maps 10")
		remove(t, w.maps.Pods, bpf.PodKey{Addr: bpf.AddressFrom(addr("10.1.0.6"))})
		says("shop/web 10.96.0.11 5432",
			"backend 10.1.0.6:15432: ingress: by the tables allowed (no policy selects the pod), by the maps not judged: the pod is not in sluice_pods")
		remove(t, w.maps.Peers, bpf.PeerKey{Member: memberOf(classDB)})
		says("shop/db shop/web 80",
			"ingress: by the tables denied (denied by rule CiliumNetworkPolicy/shop/no-db "+
				"spec.ingressDeny[0]), by the maps denied (no entry)",
			"ingress: by the tables class 13, by the maps 0")
		update(t, w.maps.Subjects, bpf.SubjectKey{Subject: subjectWeb}, bpf.SubjectValue{
			Ruleset: bpf.EmptyRuleset,
		})
		says("10.2.0.6 shop/web 80",
			"ingress: by the tables denied (default deny NetworkPolicy/shop/web spec.ingress), by the maps allowed (no policy selects the pod)",
			"ingress: by the tables ruleset 5, by the maps 1")
		remove(t, w.maps.Subjects, bpf.SubjectKey{Subject: subjectWeb})
		update(t, w.maps.Config, bpf.ConfigKey{}, bpf.ConfigValue{VNI: 7})
		says("host shop/web 80",
			"ingress: by the tables allowed (host reaches its pods), by the maps denied (no entry)",
			"ingress: by the tables ruleset 5, by the maps 0")
	})
}

func update[K, V comparable](t *testing.T, m bpf.Map[K, V], key K, value V) {
	_, err := m.Update([]K{key}, []V{value})
	require.NoError(t, err)
}

func remove[K, V comparable](t *testing.T, m bpf.Map[K, V], key K) {
	_, err := m.Delete([]K{key})
	require.NoError(t, err)
}

// An agent that starts fills maps that packets do not meet yet, and says so.
func TestSlots(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		lines := func() (texts []string) {
			policy, err := w.Policy("shop/client", "shop/web", "80", "")
			require.NoError(t, err)
			egress, err := w.Egress("shop/client", "198.51.100.10")
			require.NoError(t, err)
			require.Equal(t, policy.Kernel.Slots, egress.Kernel.Slots)
			return append(policy.Lines(), egress.Lines()...)
		}
		require.NotContains(t, strings.Join(lines(), "\n"), "NOT IN FORCE")
		active, own, err := w.maps.Slot()
		require.NoError(t, err)
		update(t, w.maps.State, bpf.StateKey{}, bpf.StateValue{Slot: 1 - active})
		text := fmt.Sprintf(
			"kernel: NOT IN FORCE YET: the agent fills slot %d, packets are judged by slot %d",
			own, 1-active,
		)
		got := lines()
		require.Equal(t, []string{text, "kernel: same"}, got[3:5])
		require.Equal(t, []string{text, "kernel: same"}, got[7:])
	})
}

// A pod of which it is not known what policies say is held only if there are any.
func TestNoPolicies(t *testing.T) {
	w := newWorld(t, inMemory(t))
	both(w, w.Configs, w.maps.Config, &tables.DatapathConfig{Underlay: addr("192.168.0.1")})
	answer, err := w.Policy("world-ipv6", "shop/web", "80", "")
	require.NoError(t, err)
	require.Equal(
		t, []string{"verdict: allowed", "ingress allowed: there are no policies", "kernel: same"},
		answer.Lines(),
	)
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
				rows = append(rows, &tables.IPCache{
					Prefix: single(netip.AddrFrom4(a))[0], Member: uint32(1000 + i%200),
				})
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

// Whatever the entries, this package finds the verdict that [verdicts.Maps.Lookup] says the
// programs find, in the tables and in the maps.
func TestLookUp(t *testing.T) {
	forMaps(t, func(t *testing.T, w *world) {
		rnd := rand.New(rand.NewPCG(1, 2))
		pairs, entries := map[bpf.PolicyKey]bpf.PolicyValue{}, map[bpf.VerdictKey]bpf.VerdictValue{}
		for range 4 {
			row := &tables.PolicyEntry{
				Ruleset: 9, Class: rnd.Uint32N(3), Direction: bpf.Direction(rnd.IntN(2)),
				Set: 90 + rnd.Uint32N(4),
			}
			both(w, w.Entries, w.maps.Policy, row)
			pairs[row.MapKey()] = row.MapValue()
		}
		for range 200 {
			bits := rnd.IntN(17)
			protocol := []uint8{0, 1, 6, 17, 47}[rnd.IntN(5)]
			if protocol == 47 {
				bits = 0
			}
			key := bpf.VerdictKeyOf(90+rnd.Uint32N(4), protocol, uint16(rnd.UintN(1<<16)), bits)
			entries[key] = bpf.VerdictValue{Deny: uint8(rnd.IntN(2)), Cookie: rnd.Uint32()}
			both(w, w.Verdicts, w.maps.Verdicts, &tables.Verdict{Key: key, Value: entries[key]})
		}
		oracle := verdicts.Maps{
			Policy: func(k bpf.PolicyKey) (v bpf.PolicyValue, ok bool) {
				v, ok = pairs[k]
				return v, ok
			},
			Verdict: func(k bpf.VerdictKey) (v bpf.VerdictValue, ok bool) {
				v, ok = entries[k]
				return v, ok
			},
		}
		hits, misses := 0, 0
		for range 3000 {
			q := verdicts.Question{
				Ruleset: 9, Class: rnd.Uint32N(3), Direction: bpf.Direction(rnd.IntN(2)),
				Protocol: []uint8{1, 6, 17, 47, 132}[rnd.IntN(5)], Port: uint16(rnd.UintN(1 << 16)),
			}
			if q.Protocol == 47 {
				q.Port = 0
			}
			want, found := oracle.Lookup(q)
			txn := w.DB.ReadTxn()
			maps := &present{Explainer: w.Explainer, txn: txn}
			for _, v := range []view{&wanted{w.Explainer, txn}, maps} {
				d := lookUp(v, 9, q.Class, q.Direction, Traffic{Protocol: q.Protocol, Port: q.Port})
				require.Equal(t, found, d.Entry != nil)
				if !found {
					require.Equal(t, Denied, d.Verdict)
					misses++
					continue
				}
				hits++
				require.Equal(t, want.Verdict.Deny != 0, d.Verdict == Denied)
				require.Equal(t, want.Entry.String(), d.Pair.Key)
				require.Equal(t, want.Verdict.String(), d.Entry.Value)
				require.Equal(t, want.Key.String(), d.Entry.Key)
			}
			require.NoError(t, maps.failed())
		}
		require.Greater(t, hits, 1000)
		require.Greater(t, misses, 100)
	})
}
