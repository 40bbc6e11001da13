// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// The culprit is the namespace whose selectors make most classes, by number or by telling many label
// sets apart with few.
func TestCulprit(t *testing.T) {
	// Classes of eight label sets that three selectors tell apart, as the bits of a number.
	bits := [][]uint32{{}, {1}, {2}, {1, 2}, {3}, {1, 3}, {2, 3}, {1, 2, 3}}
	for name, test := range map[string]struct {
		classes [][]uint32
		owners  map[uint32][]string
		culprit string
	}{
		"the namespace itself": {
			bits, map[uint32][]string{1: {"shop"}, 2: {"shop"}, 3: {"tenant"}}, "shop",
		},
		"few selectors": {
			append([][]uint32{{7}, {8}, {9}, {10}}, bits...),
			map[uint32][]string{
				1: {"tenant"}, 2: {"tenant"}, 3: {"tenant"},
				7: {"shop"}, 8: {"shop"}, 9: {"shop"}, 10: {"shop"},
			},
			"tenant",
		},
		"two that name the same": {
			bits, map[uint32][]string{1: {"a", "b"}, 2: {"a", "b"}, 3: {"b"}}, "b",
		},
		"one that names what another names": {
			[][]uint32{{1}, {2}, {3}, {4}, {}},
			map[uint32][]string{1: {"other", "tenant"}, 2: {"tenant"}, 3: {"tenant"}, 4: {"tenant"}},
			"tenant",
		},
		"a selector of all": {
			[][]uint32{{1, 2}, {1, 3}, {1, 4}},
			map[uint32][]string{1: {"tenant"}, 2: {"shop"}, 3: {"shop"}, 4: {"shop"}}, "shop",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := splits{namespace: "shop", classes: test.classes, owners: test.owners}
			require.Equal(t, test.culprit, s.findCulprit())
		})
	}
}

// A namespace with far more label sets than classes, and a culprit, costs a transaction no more
// than one look at its classes.
func TestWorkOfSplits(t *testing.T) {
	const share, labelSets = 100, 400
	h := newHarnessWith(t, share)
	h.rule.maxWork = 1000
	h.inputs.Namespaces.Put(&tables.Namespace{Name: "shop"}, &tables.Namespace{Name: "tenant"})
	for i := range labelSets {
		h.inputs.Endpoints.Put(pod(fmt.Sprintf("shop/pod-%d", i), "there",
			fmt.Sprintf("10.1.%d.%d", i/200, i%200), labels.Set{"n": fmt.Sprint(i)}))
	}
	h.settle()
	r := &tables.Ruleset{
		Life: tables.Life{Number: 9999}, Digest: bpf.Digest{9},
		Policies: []tables.PolicyID{{
			Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "tenant", Name: "p"},
		}},
		Rules: []*tables.Rule{{}},
	}
	for i := range labelSets {
		for _, s := range h.use(pods(fmt.Sprintf("n=%d", i))) {
			r.Rules[0].Peers = append(r.Rules[0].Peers, s.Number)
		}
	}
	h.inputs.Rulesets.Put(r)
	steps := 0
	for h.step() {
		steps++
	}
	require.Less(t, steps, 20)
	row, _, found := h.Split.Get(h.db.ReadTxn(), tables.SplitNamespaceByName("shop"))
	require.True(t, found)
	require.Equal(t, []uint32{9999}, row.Refused)
	txn := h.db.ReadTxn()
	for m := range h.Members.All(txn) {
		class, _, _ := h.Classes.Get(txn, tables.ClassByNumber(m.Class))
		require.False(t, class.Refused, "a pod of the namespace")
	}

	// When the ruleset is gone, so are the classes, and with few label sets the row.
	h.inputs.Rulesets.Remove(r)
	for s := range h.inputs.Selectors.All(h.db.ReadTxn()) {
		h.inputs.Selectors.Remove(s)
	}
	for i := share; i < labelSets; i++ {
		h.inputs.Endpoints.Remove(pod(fmt.Sprintf("shop/pod-%d", i), "there",
			fmt.Sprintf("10.1.%d.%d", i/200, i%200), labels.Set{"n": fmt.Sprint(i)}))
	}
	h.settle()
	require.Zero(t, h.Split.NumObjects(h.db.ReadTxn()))
}
