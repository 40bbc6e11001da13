// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/columns"
)

// screen is a status for people.
type screen struct {
	bytes.Buffer
	*api.Status
	color bool
	now   time.Time // by the agent's clock
}

// shownProblems is how many problems are printed.
const shownProblems = 10

func newScreen(s *api.Status, color bool) *bytes.Buffer {
	p := &screen{Status: s, color: color, now: s.Started.Add(time.Duration(s.UptimeSeconds) * time.Second)}
	p.head()
	p.dataflow()
	p.maps()
	p.programs()
	p.tampered()
	p.overlay()
	p.collections()
	p.drops()
	return &p.Buffer
}

// line writes what is to be said of something, and further lines below that.
func (p *screen) line(name, text string, more ...string) {
	fmt.Fprintf(p, "%-10s %s\n", name, text)
	for _, m := range more {
		p.line("", m)
	}
}

// paint returns a text in a tone, without what would steer the terminal: it may
// come from an object of the cluster.
func (p *screen) paint(tone columns.Tone, text string) string {
	text = columns.Clean(text)
	if !p.color {
		return text
	}
	return tone.Paint(text)
}

func (p *screen) head() {
	p.line("Node", fmt.Sprintf("%s, %s, up %s", p.Node, p.Version, ago(time.Duration(p.UptimeSeconds)*time.Second)))
	p.line("Health", fmt.Sprintf("%s, %d modules", p.paint(columns.ToneOf(p.Health.Status), p.Health.Status), p.Health.Modules))
	if p.Ready.Ready {
		p.line("Ready", p.paint(columns.Good, "yes"))
	} else {
		p.line("Ready", p.paint(columns.Warn, "no"))
	}
	if p.OK {
		return
	}
	shown := p.Problems[:min(shownProblems, len(p.Problems))]
	for i, problem := range shown {
		name := ""
		if i == 0 {
			name = "Problems"
		}
		p.line(name, p.paint(columns.Bad, problem))
	}
	if more := len(p.Problems) - len(shown); more > 0 {
		p.line("", fmt.Sprintf("and %d more: -o json has all", more))
	}
}

func (p *screen) dataflow() {
	states := map[string]int{}
	for _, s := range p.Sources {
		states[s.State]++
	}
	p.line("Sources", counts(p, states))

	var more []string
	pending, failed := 0, 0
	for _, t := range p.Tables.Statuses {
		pending, failed = pending+t.Pending, failed+t.Errors
		text := fmt.Sprintf("%s: %d of %d rows pending", t.Name, t.Pending, t.Rows)
		if t.Errors > 0 {
			text += p.paint(columns.Bad, fmt.Sprintf(", %d failed: %s", t.Errors, t.Error))
		}
		more = append(more, text)
	}
	text := fmt.Sprintf("%d, %d rows", p.Tables.Tables, p.Tables.Rows)
	if n := len(p.Tables.Uninitialized); n > 0 {
		text += p.paint(columns.Warn, fmt.Sprintf(", %d not initialized", n))
	}
	if pending+failed == 0 {
		text += ", none pending or failed"
	} else {
		text += p.paint(columns.Warn, fmt.Sprintf(", %d pending", pending)) + p.paint(failure(failed), fmt.Sprintf(", %d failed", failed))
	}
	p.line("Tables", text, more...)

	p.line("Policies", "egress: "+counts(p, p.Policies.Egress), "network: "+counts(p, p.Policies.Network))
	if r := p.Report; r != nil {
		text := fmt.Sprintf("of %d policies to the operator", r.Policies)
		if r.Pending > 0 {
			text += p.paint(columns.Warn, fmt.Sprintf(", %d not written", r.Pending))
		}
		if r.Error != "" {
			text += p.paint(columns.Bad, ": "+r.Error)
		}
		p.line("Report", text)
	}
	for _, l := range p.Leaders {
		text := p.paint(columns.Plain, cmp.Or(l.Holder, "no operator")) + " leads"
		if l.Leading {
			text += ": this one"
		}
		if l.Error != "" {
			text += p.paint(columns.Warn, "; "+l.Error)
		}
		p.line("Leader", text)
	}
}

func failure(n int) columns.Tone {
	if n == 0 {
		return columns.Plain
	}
	return columns.Bad
}

// counts returns numbers by state.
func counts[State ~string](p *screen, states map[State]int) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(states)) {
		parts = append(parts, p.paint(columns.ToneOf(string(state)), fmt.Sprintf("%d %s", states[state], state)))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// barWidth is of how many characters a bar for how full a map is consists.
const barWidth = 10

// maps shows the maps that have something, the fullest first. One with room for
// a single entry is full as it should be.
func (p *screen) maps() {
	shown := slices.DeleteFunc(slices.Clone(p.Maps), func(m api.MapStatus) bool {
		return m.Pending+m.Waiting+m.Failed == 0 && (m.Entries == 0 || m.MaxEntries == 1)
	})
	slices.SortStableFunc(shown, func(a, b api.MapStatus) int { return cmp.Compare(b.PressurePercent, a.PressurePercent) })
	rows := [][]string{{"Map", "Pressure", "", "Entries", "Size", "Pending", "Waiting", "Failed"}}
	for _, m := range shown {
		full := min(barWidth, int(m.PressurePercent*barWidth/100+0.5))
		rows = append(rows, []string{
			m.Name, fmt.Sprintf("%.1f%%", m.PressurePercent), strings.Repeat("█", full) + strings.Repeat("░", barWidth-full),
			strconv.Itoa(m.Entries), strconv.FormatUint(uint64(m.MaxEntries), 10),
			strconv.Itoa(m.Pending), strconv.Itoa(m.Waiting), strconv.Itoa(m.Failed),
		})
	}
	backends := map[string]int{}
	for _, m := range p.Maps {
		backends["in "+m.Backend]++
	}
	p.line("Maps", fmt.Sprintf("%s; these are in use:", counts(p, backends)))
	p.table(rows)
}

// table writes rows below a line, none if there is no row but the header.
func (p *screen) table(rows [][]string) {
	if len(rows) == 1 {
		return
	}
	var text bytes.Buffer
	c := columns.NewWriter(&text)
	c.Color = p.color
	c.Write(rows...) // a buffer takes all
	for line := range strings.Lines(text.String()) {
		fmt.Fprintf(p, "%-10s %s", "", line)
	}
}

func (p *screen) programs() {
	var more []string
	for _, a := range p.Programs {
		text := fmt.Sprintf("%s: %d running", a.Program, a.Running)
		if len(a.Devices) > 0 {
			text += " at " + columns.Clean(strings.Join(a.Devices, ", "))
			if rest := a.Running - len(a.Devices); rest > 0 {
				text += fmt.Sprintf(" and %d more", rest)
			}
		}
		if a.Pending > 0 {
			text += p.paint(columns.Warn, fmt.Sprintf("; %d pending", a.Pending))
		}
		if a.Failed > 0 {
			text += p.paint(columns.Bad, fmt.Sprintf("; %d failed: %s", a.Failed, a.Error))
		}
		more = append(more, text)
	}
	if len(more) == 0 {
		more = []string{"none attached"}
	}
	p.line("Programs", more[0], more[1:]...)
}

// tampered says what others have changed in the kernel, if they have.
func (p *screen) tampered() {
	for i, t := range p.Tampered {
		name := ""
		if i == 0 {
			name = "Tampered"
		}
		p.line(name, p.paint(columns.Bad, fmt.Sprintf("%s: %d %s, the last %s ago: %s",
			t.Object, t.Count, t.Kind, ago(p.now.Sub(t.Last)), columns.Clean(t.Example))))
	}
}

func (p *screen) overlay() {
	if p.Overlay == nil {
		return
	}
	text := "no key"
	for i, key := range p.Overlay.Keys {
		if i == 0 {
			text = "sends with key " + p.paint(columns.Plain, key)
			continue
		}
		text += ", accepts " + p.paint(columns.Plain, key) + " too"
	}
	var more []string
	if p.Overlay.Open != "" {
		more = []string{p.paint(columns.Warn, "open: "+p.Overlay.Open)}
	}
	p.line("Overlay", text, more...)
}

func (p *screen) collections() {
	if len(p.GC) == 0 {
		p.line("GC", "no pass through the connections yet")
	}
	for i, gc := range p.GC {
		name := ""
		if i == 0 {
			name = "GC"
		}
		text := fmt.Sprintf("%s: %s ago (%s), %d of %d entries removed in %s", gc.Set, ago(p.now.Sub(gc.Started)), columns.Clean(gc.Reason),
			gc.Removed, gc.Scanned, round(gc.Duration))
		if gc.IntervalSeconds > 0 {
			text += fmt.Sprintf(", interval %s", ago(time.Duration(gc.IntervalSeconds)*time.Second))
		}
		if gc.Failed > 0 || gc.Error != "" {
			text += p.paint(columns.Bad, fmt.Sprintf("; %d failed: %s", gc.Failed, gc.Error))
		}
		p.line(name, text)
	}
}

func (p *screen) drops() {
	text := fmt.Sprintf("%d packets since the start", p.Drops.Packets)
	if p.Drops.Others > 0 {
		text += fmt.Sprintf(", for %d more reasons", p.Drops.Others)
	}
	p.line("Drops", text)
	rows := [][]string{{"Packets", "Reason", "Pods", "Last", "Packet"}}
	for _, d := range p.Drops.Reasons {
		rows = append(rows, []string{
			strconv.FormatUint(d.Packets, 10), d.Reason, strconv.Itoa(d.Pods), ago(p.now.Sub(d.Last)) + " ago", cmp.Or(d.Packet, "-"),
		})
	}
	p.table(rows)
}

// ago returns a duration in its two largest units.
func ago(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
