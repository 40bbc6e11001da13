// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has the inputs of the rule, and the rule, which runs by steps.
type world struct {
	testing.TB
	db       *statedb.DB
	rulesets tablestest.Table[*tables.Ruleset]
	classes  tablestest.Table[*tables.Class]
	rule     *rule
	stepper  *tablestest.Rule[key]
}

func newWorld(t testing.TB) *world {
	w := &world{TB: t, db: statedb.New()}
	w.rulesets = tablestest.Open(t, w.db, tables.NewRulesetTable)
	w.classes = tablestest.Open(t, w.db, tables.NewClassTable)
	w.rule = &rule{maxWork: maxWork, params: params{
		Rulesets: w.rulesets, Classes: w.classes,
		Entries:  tablestest.Open(t, w.db, tables.NewPolicyEntryTable),
		Compiled: tablestest.Open(t, w.db, tables.NewCompiledTable),
		Sets:     tablestest.Open(t, w.db, tables.NewVerdictSetTable),
		Verdicts: tablestest.Open(t, w.db, tables.NewVerdictTable),
		Usage:    tablestest.Open(t, w.db, tables.NewPolicyUsageTable),
		Refusals: tablestest.Open(t, w.db, tables.NewRulesetRefusalTable),
		Room:     RoomOf(bpf.DefaultConfig),
	}}
	w.stepper = tablestest.NewRule(t, w.db, w.rule.declare())
	w.work()
	return w
}

func (w *world) work() { w.stepper.Work() }

// put inserts rulesets and classes in one transaction.
func (w *world) put(rows ...any) { w.write(rows, false) }

func (w *world) remove(rows ...any) { w.write(rows, true) }

func (w *world) write(rows []any, isDelete bool) {
	wtxn := w.db.WriteTxn(w.rulesets, w.classes)
	defer wtxn.Commit()
	for _, row := range rows {
		switch row := row.(type) {
		case *tables.Ruleset:
			require.NoError(w, writeRow(wtxn, w.rulesets, row, isDelete))
		case *tables.Class:
			require.NoError(w, writeRow(wtxn, w.classes, row, isDelete))
		}
	}
}

func writeRow[Row any](
	wtxn statedb.WriteTxn, table statedb.RWTable[Row], row Row, isDelete bool,
) error {
	if isDelete {
		return derive.Delete(wtxn, table, row)
	}
	return derive.Insert(wtxn, table, row)
}

func (w *world) desired() Maps { return Desired(w.db.ReadTxn(), w.rule.Entries, w.rule.Verdicts) }

// revisions returns those of the outputs: they count writes.
func (w *world) revisions() (entries, compiled, sets, verdicts int) {
	txn := w.db.ReadTxn()
	return int(w.rule.Entries.Revision(txn)), int(w.rule.Compiled.Revision(txn)),
		int(w.rule.Sets.Revision(txn)), int(w.rule.Verdicts.Revision(txn))
}

// contents returns what each set says.
func (w *world) contents() map[uint32]*content {
	contents := map[uint32]*content{}
	txn := w.db.ReadTxn()
	for s := range w.rule.Sets.All(txn) {
		says := &content{}
		for v := range w.rule.Verdicts.Prefix(txn, tables.VerdictsOfSet(s.Number)) {
			row := *v
			row.Key.Set = 0
			says.verdicts = append(says.verdicts, row)
		}
		says.digest = digest(says.verdicts)
		require.Equal(w, s.Digest, says.digest)
		require.Len(w, says.verdicts, s.Entries)
		contents[s.Number] = says
	}
	total := 0
	for _, says := range contents {
		total += len(says.verdicts)
	}
	require.Equal(w, total, w.rule.Verdicts.NumObjects(txn), "there are no verdicts without set")
	return contents
}

// entries returns what the set of each entry says.
func (w *world) entries() map[bpf.PolicyKey]bpf.Digest {
	entries, referred, contents := map[bpf.PolicyKey]bpf.Digest{}, map[uint32]bool{}, w.contents()
	for e := range w.rule.Entries.All(w.db.ReadTxn()) {
		require.Contains(w, contents, e.Set)
		entries[e.MapKey()] = contents[e.Set].digest
		referred[e.Set] = true
	}
	require.Len(w, referred, len(contents), "there are no sets without entries")
	return entries
}

// wanted returns what the set of each entry has to say, by looking at all pairs.
func (w *world) wanted() map[bpf.PolicyKey]bpf.Digest {
	entries := map[bpf.PolicyKey]bpf.Digest{}
	txn := w.db.ReadTxn()
	for r := range w.rulesets.All(txn) {
		for _, d := range directions {
			s := newSide(r, d, new(work))
			k := bpf.PolicyKey{Ruleset: r.Number, Direction: d}
			entries[k] = s.any.digest
			for c := range w.classes.All(txn) {
				says := newSide(r, d, new(work)).of(c, new(work))
				if says.digest != s.any.digest || s.weight(c) > 1 {
					k.Class = c.Number
					entries[k] = says.digest
				}
			}
		}
	}
	return entries
}

func ruleset(number uint32, rules ...*tables.Rule) *tables.Ruleset {
	slices.SortFunc(rules, func(a, b *tables.Rule) int { return a.RuleID.Compare(b.RuleID) })
	r := &tables.Ruleset{Life: tables.Life{Number: number}, Rules: rules}
	r.Digest = bpf.Digest{byte(number), byte(number >> 8)}
	for _, rule := range rules {
		r.Policies = append(r.Policies, rule.Policy)
	}
	r.Policies = slices.Compact(r.Policies)
	return r
}

func class(number uint32, selectors []uint32, ports ...tables.NamedPort) *tables.Class {
	slices.Sort(selectors)
	slices.SortFunc(ports, tables.NamedPort.Compare)
	ports = slices.Compact(ports)
	c := &tables.Class{Life: tables.Life{Number: number}, Selectors: selectors, Ports: ports}
	c.Digest = bpf.Digest{byte(number), byte(number >> 8), byte(number >> 16)}
	return c
}

func refusedClass(number uint32) *tables.Class {
	c := class(number, nil)
	c.Precision = tables.Refused
	return c
}

// ruleAt is an item of a policy, without peers.
func ruleAt(policy string, d bpf.Direction, item int) *tables.Rule {
	name := tables.Name{Namespace: "default", Name: policy}
	id := tables.RuleID{Direction: d, Item: int32(item), Field: fmt.Sprintf("spec.%s[%d]", d, item)}
	id.Policy = tables.PolicyID{Kind: tables.PolicyCilium, Name: name}
	return &tables.Rule{RuleID: id}
}

func tcp(first, last uint16) tables.PolicyPort {
	return tables.PolicyPort{Protocol: 6, First: first, Last: last}
}

func namedTCP(name string) tables.PolicyPort { return tables.PolicyPort{Protocol: 6, Name: name} }
