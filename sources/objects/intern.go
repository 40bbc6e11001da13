// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"runtime"
	"sync"
	"unique"
	"weak"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// Interner lets the many pods that have the same labels share them. It keeps none alive: a tenant
// may give a pod new labels, of a megabyte, as often as it likes.
type Interner struct {
	mu   sync.Mutex
	sets map[tables.LabelSetID]weak.Pointer[tables.LabelSet]
}

// LabelSet returns the one label set with these contents.
func (n *Interner) LabelSet(
	namespace, serviceAccount string, set labels.Set, ports []tables.NamedPort,
) *tables.LabelSet {
	s := tables.NewLabelSet(namespace, serviceAccount, set, ports)
	n.mu.Lock()
	defer n.mu.Unlock()
	if known := n.sets[s.ID].Value(); known != nil {
		return known
	}
	if n.sets == nil {
		n.sets = make(map[tables.LabelSetID]weak.Pointer[tables.LabelSet])
	}
	n.sets[s.ID] = weak.Make(s)
	runtime.AddCleanup(s, n.forget, s.ID)
	return s
}

// forget removes a label set that nothing has any more, unless there is another with its contents.
func (n *Interner) forget(id tables.LabelSetID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sets[id].Value() == nil {
		delete(n.sets, id)
	}
}

// internString returns the one copy of a text that many objects repeat.
func internString(s string) string { return unique.Make(s).Value() }
