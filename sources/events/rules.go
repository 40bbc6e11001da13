// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// RuleCounter counts the packets that some rules decided together, those of a
// flow's replies not among them.
type RuleCounter struct {
	Cookie  uint32   `json:"cookie"`
	Rules   []string `json:"rules"` // none if it is not known any more which
	Packets uint64   `json:"packets"`
	Bytes   uint64   `json:"bytes"`
}

// RuleCounters are the counters of all applied rules, also of those that have
// not decided anything yet. Their counts are 0 if no programs are loaded, and
// begin anew when a rule does.
func (s *Source) RuleCounters() ([]RuleCounter, error) {
	counts, err := s.rules.read()
	if err != nil {
		return nil, err
	}
	counters := []RuleCounter{}
	for row := range s.rules.cookies.All(s.rules.db.ReadTxn()) {
		c := counts[row.Cookie]
		counters = append(counters, RuleCounter{row.Cookie, tables.RuleNames(row.Rules), c.Packets, c.Bytes})
		delete(counts, row.Cookie)
	}
	for cookie, c := range counts {
		counters = append(counters, RuleCounter{cookie, []string{}, c.Packets, c.Bytes})
	}
	return counters, nil
}

// ruleCounters reads the counters of rules, and removes those of rules that there
// are no more.
type ruleCounters struct {
	db      *statedb.DB
	cookies statedb.Table[*tables.RuleCookie]
	maps    func(name string) *ebpf.Map // nil if no programs are loaded

	gone map[uint32]bool // that were of no rule at the last sweep
}

func (r *ruleCounters) read() (map[uint32]bpf.Metric, error) {
	c, loaded := bpf.RuleCountsOf(r.maps)
	if !loaded {
		return map[uint32]bpf.Metric{}, nil
	}
	return c.Read()
}

// sweepInterval is how often counters are looked through.
const sweepInterval = time.Minute

// sweep removes the counters that were of no rule at the last sweep either: a
// rule is in the kernel a moment before its cookie is in the table.
func (r *ruleCounters) sweep(context.Context) error {
	c, loaded := bpf.RuleCountsOf(r.maps)
	txn := r.db.ReadTxn()
	if initialized, _ := r.cookies.Initialized(txn); !loaded || !initialized {
		return nil
	}
	counts, err := c.Read()
	if err != nil {
		return err
	}
	gone := map[uint32]bool{}
	for cookie := range counts {
		if _, _, known := r.cookies.Get(txn, tables.RuleCookieByNumber(cookie)); known {
			continue
		}
		if !r.gone[cookie] {
			gone[cookie] = true
			continue
		}
		if err := c.Remove(cookie); err != nil {
			return err
		}
	}
	r.gone = gone
	return nil
}
