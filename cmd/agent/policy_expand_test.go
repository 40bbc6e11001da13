// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// However the events of a story are ordered, split, merged or repeated, it ends
// in the same verdicts, and the same classes but for their numbers.
func TestExpandedPolicyEvents(t *testing.T) {
	others := func(events []string) [][]string {
		g := policytest.NewGenerator(99)
		var deliveries [][]string
		for i, e := range events {
			other := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: other-%d, labels: {team: green}}\n", i)
			elsewhere := strings.NewReplacer("pod-", "elsewhere-", "ns-", "other-", "10.0.", "10.99.", "fd00:0", "fd00:99", "172.20", "172.99").Replace(g.Pod())
			deliveries = append(deliveries, []string{e, other}, []string{elsewhere})
		}
		return deliveries
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			story := newPolicyStory(seed)
			flags := policyFlags(policytest.NewGenerator(seed))
			var want []string
			for _, e := range []struct {
				name   string
				expand func([]string) [][]string
			}{
				{"one by one", oneByOne},
				{"reversed", func(events []string) [][]string { slices.Reverse(events); return oneByOne(events) }},
				{"all at once", func(events []string) [][]string { return [][]string{events} }},
				{"each twice", func(events []string) [][]string { return append(oneByOne(events), oneByOne(events)...) }},
				{"after other versions of the same objects", func(events []string) [][]string {
					return append(oneByOne(policytest.NewGenerator(seed+77).World(10, 10)), oneByOne(append(deletions(seed+77, events), events...))...)
				}},
				{"among others", others},
			} {
				c := newCluster(t, append([]string{"--node-name=" + policytest.LocalNode}, flags...))
				network, err := netlink.ParseState([]byte(policyNetwork))
				require.NoError(t, err)
				c.netlink.Set(network)
				require.NoError(t, c.api.Sync())
				require.NoError(t, c.hive.Start(c.log, t.Context()))
				for _, delivery := range e.expand(slices.Clone(story)) {
					for _, event := range delivery {
						if object, is := strings.CutPrefix(event, "delete"); is {
							require.NoError(t, c.api.Delete([]byte(object)))
							delivery = nil
						}
					}
					require.NoError(t, c.api.Apply([]byte(strings.Join(delivery, "---\n"))))
				}
				require.NoError(t, c.agreesOnPolicies(t.Context()), e.name)
				if got := c.packetVerdicts(); want == nil {
					want = got
				} else {
					require.Equal(t, want, got, e.name)
				}
				require.NoError(t, c.hive.Stop(c.log, t.Context()))
			}
		})
	}
}

// newPolicyStory returns objects with different names, each with a creation time of its
// own, which decides who has an address.
func newPolicyStory(seed uint64) (events []string) {
	named := map[string]bool{}
	for _, object := range policytest.NewGenerator(seed).World(14, 10) {
		if id := objectID(object); !named[id] {
			named[id] = true
			created := fmt.Sprintf("creationTimestamp: 2026-01-01T00:00:%02dZ, name: ", len(events))
			events = append(events, strings.Replace(object, "name: ", created, 1))
		}
	}
	return events
}

// objectID returns the kind, name and namespace of a manifest.
func objectID(object string) string {
	var id []string
	for line := range strings.Lines(object) {
		if strings.HasPrefix(line, "kind:") || strings.HasPrefix(line, "metadata:") {
			before, _, _ := strings.Cut(line, ", labels")
			_, name, _ := strings.Cut(before, "name: ")
			id = append(id, strings.TrimSpace(strings.Trim(name, "}\n")))
			if name == "" {
				id = append(id, line)
			}
		}
	}
	return strings.Join(id, " ")
}

// deletions are of those objects of another story that a story does not have.
func deletions(other uint64, events []string) (list []string) {
	ids := map[string]bool{}
	for _, e := range events {
		_, e, _ = strings.Cut(e, "apiVersion")
		ids[objectID(e)] = true
	}
	for _, object := range policytest.NewGenerator(other).World(10, 10) {
		if id := objectID(object); !ids[id] {
			ids[id] = true
			list = append(list, "delete"+object)
		}
	}
	return list
}

// packetVerdicts renders what becomes of packets of interest.
func (c *cluster) packetVerdicts() (lines []string) {
	w := c.world(c.base.DB.ReadTxn())
	unrelated := func(addr netip.Addr) bool {
		return addr.Is4() && strings.Contains(addr.String(), ".99.") || strings.HasPrefix(addr.String(), "fd00:99")
	}
	var packets []policytest.Packet
	random := rand.New(rand.NewPCG(1, 1))
	for _, subject := range w.Subjects() {
		for _, peer := range w.Peers() {
			if !unrelated(subject) && !unrelated(peer) {
				packets = append(packets, policytest.PacketsBetween(random, subject, peer, 4)...)
			}
		}
	}
	c.memory.Read(func(r bpf.Reader) {
		for _, p := range packets {
			verdict, _ := policyInKernel(r, p, w.HostAllowed)
			lines = append(lines, p.String()+" "+verdict)
		}
	})
	return lines
}
