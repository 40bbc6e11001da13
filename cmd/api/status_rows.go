// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
)

// Limits of what /status names: the rest is counted.
const (
	shownDevices = 8
	shownDrops   = 5
)

// PoliciesStatus counts policies by state on this node.
type PoliciesStatus struct {
	Egress  map[tables.EgressState]int `json:"egress"`
	Network map[tables.PolicyState]int `json:"network"`
}

func (t *statusTables) policies(txn statedb.ReadTxn) PoliciesStatus {
	s := PoliciesStatus{Egress: map[tables.EgressState]int{}, Network: map[tables.PolicyState]int{}}
	for _, row := range all(t.Egress, txn) {
		s.Egress[row.State()]++
	}
	for _, row := range all(t.Network, txn) {
		s.Network[row.State]++
	}
	return s
}

// ReportStatus is whether the API server has what this node tells of policies, from which the
// operator makes their status.
type ReportStatus struct {
	Policies int    `json:"policies"`        // that this node tells of
	Pending  int    `json:"pending"`         // of which the API server does not have it
	Error    string `json:"error,omitempty"` // why, of one of them
}

func (t *statusTables) report(txn statedb.ReadTxn) *ReportStatus {
	if t.Report == nil || !t.Reporting.Enabled {
		return nil
	}
	s := &ReportStatus{}
	for row := range t.Report.All(txn) {
		s.Policies++
		if row.Status.Kind != reconciler.StatusKindDone {
			s.Pending++
			s.Error = cmp.Or(s.Error, row.Status.GetError())
		}
	}
	return s
}

// ProgramStatus is where a program runs.
type ProgramStatus struct {
	Program string   `json:"program"`
	Running int      `json:"running"`
	Pending int      `json:"pending"`
	Failed  int      `json:"failed"`
	Devices []string `json:"devices,omitempty"` // some of those where it runs
	Error   string   `json:"error,omitempty"`   // of the first where it does not
}

func programs(attachments []*tables.Attachment) []ProgramStatus {
	byName := map[string]*ProgramStatus{}
	list := []*ProgramStatus{}
	for _, a := range attachments {
		name := a.Program.String()
		p := byName[name]
		if p == nil {
			p = &ProgramStatus{Program: name}
			byName[name], list = p, append(list, p)
		}
		switch condition.Of(a) {
		case condition.Error:
			p.Failed++
			p.Error = cmp.Or(p.Error, a.Device+": "+a.Status.GetError())
		case condition.Pending:
			p.Pending++
		default:
			p.Running++
			if a.Device != "" && len(p.Devices) < shownDevices {
				p.Devices = append(p.Devices, a.Device)
			}
		}
	}
	slices.SortFunc(
		list, func(a, b *ProgramStatus) int { return strings.Compare(a.Program, b.Program) },
	)
	programs := []ProgramStatus{}
	for _, p := range list {
		programs = append(programs, *p)
	}
	return programs
}

// GCStatus is the last pass through a set of maps of connections.
type GCStatus struct {
	Set             string        `json:"set"`
	Reason          string        `json:"reason"`
	Started         time.Time     `json:"started"`
	Duration        time.Duration `json:"duration"` // through all maps
	Scanned         uint64        `json:"scanned"`
	Removed         uint64        `json:"removed"`
	Failed          uint64        `json:"failed"`
	NextRun         time.Time     `json:"nextRun,omitzero"`
	IntervalSeconds int64         `json:"intervalSeconds,omitempty"` // from this one to the next
	Error           string        `json:"error,omitempty"`

	pass uint64
}

func collections(runs []*tables.CTGCRun) []GCStatus {
	bySet := map[string]*GCStatus{}
	for _, r := range runs { // the oldest first
		s := bySet[r.Set]
		if s == nil || s.pass != r.Pass {
			s = &GCStatus{Set: r.Set, Reason: r.Reason, Started: r.Started, pass: r.Pass}
			bySet[r.Set] = s
		}
		s.Duration += r.Duration
		s.Scanned += r.Scanned
		s.Removed += r.Expired + r.Translations + r.Orphans + r.Released + r.Flushed + r.Condemned
		s.Failed += r.Failed
		s.Error = cmp.Or(s.Error, r.Error)
		if s.NextRun = r.NextRun; !r.NextRun.IsZero() {
			s.IntervalSeconds = int64(r.NextRun.Sub(r.Started).Round(time.Second).Seconds())
		}
	}
	list := []GCStatus{}
	for _, s := range bySet {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b GCStatus) int { return strings.Compare(a.Set, b.Set) })
	return list
}

// DropsStatus are the drops that the programs have reported since the agent's start.
type DropsStatus struct {
	Packets uint64       `json:"packets"`
	Reasons []DropStatus `json:"reasons"` // the most frequent
	Others  int          `json:"others"`  // further reasons
}

// DropStatus are the drops for one reason.
type DropStatus struct {
	Reason  string    `json:"reason"`
	Packets uint64    `json:"packets"`
	Pods    int       `json:"pods"` // whose packets they were
	Last    time.Time `json:"last"`
	Packet  string    `json:"packet"` // the last one
}

func drops(rows []*tables.Drop) (s DropsStatus) {
	byReason := map[string]*DropStatus{}
	pods := map[[2]string]bool{}
	for _, row := range rows {
		s.Packets += row.Count
		d := byReason[row.Reason]
		if d == nil {
			d = &DropStatus{Reason: row.Reason}
			byReason[row.Reason] = d
		}
		d.Packets += row.Count
		if pod := [2]string{row.Reason, row.Pod}; row.Pod != "" && !pods[pod] {
			pods[pod] = true
			d.Pods++
		}
		if row.Last.After(d.Last) {
			d.Last, d.Packet = row.Last, row.Packet
		}
	}
	s.Reasons = []DropStatus{}
	for _, d := range byReason {
		s.Reasons = append(s.Reasons, *d)
	}
	slices.SortFunc(s.Reasons, func(a, b DropStatus) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), strings.Compare(a.Reason, b.Reason))
	})
	shown := min(shownDrops, len(s.Reasons))
	s.Others, s.Reasons = len(s.Reasons)-shown, s.Reasons[:shown]
	return s
}
