// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// internSize bounds the label sets that are kept for being used again, twice:
// those of the current generation, and those of the one before it.
const internSize = 16384

// Interner lets the many pods that have the same labels share them. It forgets
// what was not asked for during the last [internSize] new label sets, which then
// is shared no more but as right as before.
type Interner struct {
	mu            sync.Mutex
	recent, older map[tables.LabelSetID]*tables.LabelSet
}

// LabelSet returns the one label set with these contents.
func (n *Interner) LabelSet(
	namespace, serviceAccount string, set labels.Set, ports []tables.NamedPort,
) *tables.LabelSet {
	s := tables.NewLabelSet(namespace, serviceAccount, set, ports)
	n.mu.Lock()
	defer n.mu.Unlock()
	if known, found := n.recent[s.ID]; found {
		return known
	}
	if known, found := n.older[s.ID]; found {
		s = known
	}
	if n.recent == nil || len(n.recent) >= internSize {
		n.older, n.recent = n.recent, make(map[tables.LabelSetID]*tables.LabelSet)
	}
	n.recent[s.ID] = s
	return s
}

// internString returns the one copy of a text that many objects repeat.
func internString(s string) string { return unique.Make(s).Value() }
