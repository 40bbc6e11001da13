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
)

// However the events of a story are ordered, split, merged or repeated, it ends
// in the same decisions: the method of Calico Felix.
func TestExpandedEvents(t *testing.T) {
	for seed := range uint64(4) {
		story := newStory(seed)
		want := ""
		for _, e := range []struct {
			name   string
			expand func([]string) [][]string // deliveries, each of events that come together
		}{
			{"one by one", oneByOne},
			{"reversed", func(events []string) [][]string { slices.Reverse(events); return oneByOne(events) }},
			{"all at once", func(events []string) [][]string { return [][]string{events} }},
			{"each twice", func(events []string) [][]string { return append(oneByOne(events), oneByOne(events)...) }},
			{"among others", func(events []string) [][]string {
				var deliveries [][]string
				for i, e := range events {
					other := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: other-%d}\n", i)
					deliveries = append(deliveries, []string{e, other})
				}
				return deliveries
			}},
		} {
			c := newCluster(t, []string{"--node-name=node-0"})
			require.NoError(t, c.api.Sync())
			require.NoError(t, c.hive.Start(c.log, t.Context()))
			for _, delivery := range e.expand(slices.Clone(story)) {
				require.NoError(t, c.api.Apply([]byte(strings.Join(delivery, "---\n"))))
			}
			require.NoError(t, c.agrees(t.Context()), "seed %d %s", seed, e.name)
			if got := c.decisions(); want == "" {
				want = got
			} else {
				require.Equal(t, want, got, "seed %d %s", seed, e.name)
			}
		}
	}
}

func oneByOne(events []string) (deliveries [][]string) {
	for _, e := range events {
		deliveries = append(deliveries, []string{e})
	}
	return deliveries
}

// newStory returns objects with different names, so that their order is no
// matter, and with a creation time of their own, for that decides conflicts.
func newStory(seed uint64) (events []string) {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	named := map[string]bool{}
	for len(events) < 18 {
		for _, object := range []string{g.node(), g.namespace(), g.pod(), g.policy()} {
			_, rest, _ := strings.Cut(object, "name: ")
			name, _, _ := strings.Cut(rest, ",")
			name, _, _ = strings.Cut(name, "}")
			if !named[name] {
				named[name] = true
				created := fmt.Sprintf("creationTimestamp: 2026-01-01T00:00:%02dZ, name: ", len(events))
				events = append(events, strings.Replace(object, "name: ", created, 1))
			}
		}
	}
	return events
}

// decisions renders what becomes of all packets of interest.
func (c *cluster) decisions() string {
	var b strings.Builder
	sources, destinations := c.oracle.probes(c.oracle.DB.ReadTxn())
	slices.SortFunc(sources, func(a, b netip.Addr) int { return a.Compare(b) })
	c.memory.Read(func(r bpf.Reader) {
		for _, src := range sources {
			for _, dst := range destinations {
				if src.BitLen() == dst.BitLen() {
					decision, err := inKernel(r, src, dst, true)
					fmt.Fprintln(&b, src, dst, decision, err)
				}
			}
		}
	})
	return b.String()
}
