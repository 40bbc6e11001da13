// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// player plays the reconciler of one map: it announces, looks again, writes and confirms,
// each at some time. It asks no gates, so that it refers to objects as early as can be.
type player interface {
	act(e *events) // one step of some key
	settle(h *harness) (changed bool)
}

type playing[K, V tables.MapPart] struct {
	mirrors tablestest.Table[*tables.Mirror[K, V]]
	desired func(txn statedb.ReadTxn, each func(K, V))
	exists  func(txn statedb.ReadTxn, v V) bool // what a value refers to
	looked  map[K]bool                          // writes that are past the second look
	stale   statedb.ReadTxn                     // of some time ago
}

func (p *playing[K, V]) wanted(txn statedb.ReadTxn) map[K]V {
	wanted := map[K]V{}
	p.desired(txn, func(k K, v V) { wanted[k] = v })
	return wanted
}

func (p *playing[K, V]) act(e *events) {
	now := e.db.ReadTxn()
	if p.stale == nil || e.one(3) {
		p.stale = now
	}
	wanted := p.wanted(p.stale)
	keys := map[K]bool{}
	for k := range wanted {
		keys[k] = true
	}
	for _, m := range all(now, p.mirrors) {
		keys[m.Key] = true
	}
	for k := range keys { // in no order
		v, is := wanted[k]
		p.actOn(e.harness, now, k, v, is, e.one(10))
		return
	}
}

// actOn does the next thing of a key, which is desired to be so, or not at all.
func (p *playing[K, V]) actOn(
	h *harness, now statedb.ReadTxn, k K, v V, wanted, fails bool,
) (changed bool) {
	m := tables.Mirror[K, V]{Key: k}
	if row, _, found := p.mirrors.Get(now, tables.MirrorByKey[K, V](k)); found {
		m = *row
	}
	present, is := p.wanted(now)[k]
	same := m.Busy && (m.Deleting && !is || !m.Deleting && is && present == m.Writing)
	switch {
	case !m.Busy && (wanted && m.Present && m.Value == v || !wanted && !m.Present):
		return false
	case !m.Busy: // announce
		m.Busy, m.Deleting, m.Writing = true, !wanted, v
		p.looked[k] = false
	case !p.looked[k] && same: // look again
		p.looked[k] = true
		return true
	case !p.looked[k] || fails:
		m.Busy, m.Deleting = false, false
	default: // written, and confirmed
		m.Present, m.Value = !m.Deleting, m.Writing
		if m.Present && !p.exists(now, m.Value) {
			require.Fail(h, "nothing is there to refer to", "%s %s -> %s", p.mirrors.Name(), k, m.Value)
		}
		m.Busy, m.Deleting = false, false
	}
	if m.Present || m.Busy {
		p.mirrors.Put(&m)
	} else {
		p.mirrors.Remove(&m)
	}
	return true
}

func (p *playing[K, V]) settle(h *harness) (changed bool) {
	for again := true; again; {
		again = false
		now := h.db.ReadTxn()
		wanted := p.wanted(now)
		for _, m := range all(now, p.mirrors) {
			v, is := wanted[m.Key]
			again = p.actOn(h, now, m.Key, v, is, false) || again
		}
		for k, v := range wanted {
			again = p.actOn(h, h.db.ReadTxn(), k, v, true, false) || again
		}
		changed = changed || again
	}
	return changed
}

func (h *harness) reconcilers() []player {
	return []player{
		&playing[bpf.PodKey, bpf.PodValue]{
			mirrors: h.PodMirrors, looked: map[bpf.PodKey]bool{},
			desired: func(txn statedb.ReadTxn, each func(bpf.PodKey, bpf.PodValue)) {
				for p := range h.Pods.All(txn) {
					each(p.MapKey(), p.MapValue())
				}
			},
			exists: func(txn statedb.ReadTxn, v bpf.PodValue) bool {
				_, _, found := h.Subjects.Get(txn, tables.SubjectByNumber(v.Subject))
				return found || v.Subject == 0
			},
		},
		&playing[bpf.SubjectKey, bpf.SubjectValue]{
			mirrors: h.SubjectMirrors, looked: map[bpf.SubjectKey]bool{},
			desired: func(txn statedb.ReadTxn, each func(bpf.SubjectKey, bpf.SubjectValue)) {
				for s := range h.Subjects.All(txn) {
					each(s.MapKey(), s.MapValue())
				}
			},
			exists: func(txn statedb.ReadTxn, v bpf.SubjectValue) bool {
				_, _, found := h.Rulesets.Get(txn, tables.RulesetByNumber(v.Ruleset))
				return found || v.Ruleset <= bpf.EmptyRuleset
			},
		},
		&playing[bpf.SubjectKey, bpf.RouteValue]{
			mirrors: h.RouteMirrors, looked: map[bpf.SubjectKey]bool{},
			desired: func(txn statedb.ReadTxn, each func(bpf.SubjectKey, bpf.RouteValue)) {
				for r := range h.Routes.All(txn) {
					each(r.MapKey(), r.MapValue())
				}
			},
			exists: func(txn statedb.ReadTxn, v bpf.RouteValue) bool {
				_, _, found := h.EgressRulesets.Get(
					txn, tables.EgressRulesetByNumber(v.EgressRuleset),
				)
				return found
			},
		},
		&playing[bpf.EgressKey, bpf.EgressValue]{
			mirrors: h.EgressMirrors, looked: map[bpf.EgressKey]bool{},
			desired: func(txn statedb.ReadTxn, each func(bpf.EgressKey, bpf.EgressValue)) {
				for r := range h.EgressRules.All(txn) {
					each(r.MapKey(), r.MapValue())
				}
			},
			exists: func(txn statedb.ReadTxn, v bpf.EgressValue) bool {
				_, _, found := h.Groups.Get(txn, tables.EgressGroupByNumber(v.Group))
				return found || v.Group == bpf.GroupExcluded
			},
		},
	}
}

// objects renders each numbered object, by number: what it stands for and says, which never
// changes, and whether it is desired.
type object struct {
	text      string
	undesired bool
	mirrored  bool // an entry refers to it
}

func (o *oracle) objects() map[uint32]object {
	objects := map[uint32]object{}
	add := func(life tables.Life, mirrored bool, text string) {
		_, twice := objects[life.Number]
		require.False(o, twice, "number %d is of two objects", life.Number)
		objects[life.Number] = object{text, life.Undesired, mirrored}
	}
	for _, s := range all(o.txn, o.Subjects) {
		add(s.Life, refersTo(o.txn, o.PodMirrors, s.Number), fmt.Sprint("subject ", s.SubjectDef))
	}
	for _, r := range all(o.txn, o.Rulesets) {
		add(r.Life, refersTo(o.txn, o.SubjectMirrors, r.Number), "ruleset "+o.actualRuleset(r.Number))
	}
	for _, s := range all(o.txn, o.Selectors) {
		add(s.Life, false, "selector "+s.Text)
	}
	for _, r := range all(o.txn, o.EgressRulesets) {
		add(r.Life, refersTo(o.txn, o.RouteMirrors, r.Number), o.actualEgressRuleset(r.Number))
	}
	for _, g := range all(o.txn, o.Groups) {
		add(g.Life, refersTo(o.txn, o.EgressMirrors, g.Number), fmt.Sprint("group ", specsOf(g)))
	}
	return objects
}
