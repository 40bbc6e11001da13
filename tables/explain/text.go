// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// page collects the lines of an answer for people.
type page struct{ strings.Builder }

func (t *page) line(indent int, label, format string, args ...any) {
	fmt.Fprintf(t, "%s%-*s%s\n", strings.Repeat("  ", indent), 10, label, fmt.Sprintf(format, args...))
}

// Print writes the answer for people.
func (p *Policy) Print(w io.Writer) error {
	var text page
	verdict := strings.ToUpper(string(p.Verdict))
	if p.Verdict == Allowed && len(p.Ask) > 0 {
		verdict += " HERE"
	}
	fmt.Fprintf(&text, "%s%s: %s\n", verdict, p.share(), p.why())
	text.party("from", &p.From)
	text.party("to", &p.To)
	text.line(1, "traffic", "%s", Traffic{Protocol: protocolNumbers[p.Protocol], Port: p.Port})
	if len(p.Directions) > 0 || len(p.Backends) == 0 {
		text.judged(1, p.Judged)
	}
	if len(p.Ask) > 0 {
		text.line(1, "ask", "%s: what its pod sends or lets in is judged there", orNone(p.Ask, ""))
	}
	if p.Egress != nil {
		text.line(1, "leaves", "%s: %s", p.Egress.Verdict, p.Egress.why())
		text.because(2, p.Egress)
		text.way(2, p.Egress)
	}
	for _, b := range p.Backends {
		text.line(1, "backend", "%s%s: %s", b.destination(), owner(&b.To), b.text())
		text.judged(2, b.Judged)
	}
	if p.Kernel == nil {
		text.noMaps()
	} else {
		text.maps(p.Kernel.Backend, p.Kernel.Slots, p.AllDifferences())
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// share says how many backends allow it, where that is only some of them.
func (p *Policy) share() string {
	allowed := 0
	for _, b := range p.Backends {
		if b.Verdict == Allowed {
			allowed++
		}
	}
	if p.Verdict != Allowed || allowed == len(p.Backends) {
		return ""
	}
	return fmt.Sprintf(" (by %d of %d backends)", allowed, len(p.Backends))
}

// Print writes the answer for people.
func (a *Egress) Print(w io.Writer) error {
	var text page
	fmt.Fprintf(&text, "%s: %s\n", strings.ToUpper(string(a.Verdict)), a.why())
	text.because(1, a)
	text.party("from", &a.From)
	text.party("to", &a.To)
	text.way(1, a)
	if a.Kernel == nil {
		text.noMaps()
	} else {
		text.maps(a.Kernel.Backend, a.Kernel.Slots, a.Differences)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (t *page) because(indent int, a *Egress) {
	if a.Detail != "" {
		t.line(indent, "because", "%s", a.Detail)
	}
	if a.Ask != "" {
		t.line(indent, "ask", "%s", a.Ask)
	}
}

// way says by which rule and gateway a packet leaves.
func (t *page) way(indent int, a *Egress) {
	for _, translated := range a.Translated {
		t.line(indent, "but", "%s is translated before it would leave", translated)
	}
	if a.Ruleset != 0 {
		t.line(indent, "ruleset", "%d of subject %d: %s",
			a.Ruleset, a.Subject, strings.Join(a.Policies, ", "))
	}
	for _, r := range a.Rules {
		t.line(indent, "policy", "%s: %s %s%s", r.Policy, r.Verdict, r.Field, overriding(a.Overrides))
	}
	if a.Group != 0 {
		t.line(indent, "gateways", "group %d, bucket %d", a.Group, a.Bucket)
	}
	if a.Gateway.IsValid() {
		t.line(indent, "gateway", "%s (%s)", a.GatewayNode, a.Gateway)
		if a.EgressIP.IsValid() {
			t.line(indent, "address", "%s by %s", a.EgressIP, a.Device)
		} else if a.Verdict == Allowed {
			t.line(indent, "address", "the gateway knows: ask there")
		}
	}
	t.entry(indent, a.Entry)
}

func overriding(policies []string) string {
	if len(policies) == 0 {
		return ""
	}
	return ", before " + strings.Join(policies, ", ")
}

// place returns an address with the name of its owner.
func place(p *Party) string {
	text := p.place().String()
	if p.Address.IsValid() {
		text = p.Address.String()
	}
	return text + owner(p)
}

// owner returns the pod that has an address, unless it was asked for by its name.
func owner(p *Party) string {
	if p.Pod == "" || p.Pod == p.Name {
		return ""
	}
	return " (" + p.Pod + ")"
}

func (t *page) party(label string, p *Party) {
	text := p.Name
	if where := place(p); where != p.Name {
		text += " = " + where
	}
	if p.Node != "" {
		text += " on " + p.Node
	}
	for _, s := range p.Services {
		text += ", service " + s
	}
	t.line(1, label, "%s", text)
	switch {
	case p.Subject == nil:
	case *p.Subject == 0:
		t.line(1, "", "subject unknown: its new flows are held if policies could concern them")
	default:
		t.line(1, "", "subject %d, ruleset %d: %s",
			*p.Subject, p.Ruleset, orNone(p.Policies, "no policy"))
	}
	if p.TooLarge != "" {
		t.line(1, "", "TOO LARGE: %s", p.TooLarge)
	}
	switch {
	case p.Precision == tables.Refused:
		t.line(1, "", "member %d (%s), class %d: refused, its namespace has no room",
			p.Member, p.Scope, p.Class)
	case p.Member != 0:
		t.line(1, "", "member %d (%s), class %d: %s",
			p.Member, p.Scope, p.Class, orNone(p.PeerSelectors, "no selector"))
	}
	if p.Precision == tables.Coarse {
		t.line(1, "", "COARSE: its namespace has no room for more classes, so policies of other "+
			"namespaces that tell its pods apart allow it nothing")
	}
	for _, w := range p.Waits {
		t.line(1, "", "waits: %s", w)
	}
}

// orNone joins texts, or returns none if there are none.
func orNone(texts []string, none string) string {
	if len(texts) == 0 {
		return none
	}
	return strings.Join(texts, ", ")
}

func (t *page) judged(indent int, j Judged) {
	for _, d := range j.Directions {
		t.line(indent, d.Direction, "%s: %s", d.Verdict, d.Reason)
		for _, r := range d.Rules {
			t.line(indent+1, "rule", "%s: %s", r, r.Verdict)
		}
		t.entry(indent+1, d.Pair)
		t.entry(indent+1, d.Entry)
	}
}

func (t *page) entry(indent int, e *Entry) {
	if e == nil {
		return
	}
	status := ""
	switch {
	case e.Error != "":
		status = fmt.Sprintf(" (%s: %s)", e.Status, e.Error)
	case e.Status != "" && e.Status != "Done":
		status = fmt.Sprintf(" (%s)", e.Status)
	}
	t.line(indent, "entry", "%s: %s -> %s%s", e.Map, e.Key, e.Value, status)
}

func (t *page) noMaps() { t.line(1, "kernel", "there are no maps to compare with") }

// maps says how the maps that a backend holds differ.
func (t *page) maps(backend string, slots Slots, differences []string) {
	label, where := "kernel", ""
	if backend != label {
		label, where = "maps", "in "+backend+": "
	}
	if text := slots.notYet(); text != "" {
		t.line(1, label, "%s%s", where, text)
	}
	if len(differences) == 0 {
		t.line(1, label, "%sthe same", where)
	}
	for _, d := range differences {
		t.line(1, label, "%sDIFFERS: %s", where, d)
	}
}

// notYet says that packets do not use the maps of the answer, empty if they do.
func (s Slots) notYet() string {
	if s.InForce == s.Own {
		return ""
	}
	return fmt.Sprintf("NOT IN FORCE YET: the agent fills slot %d, packets are judged by slot %d",
		s.Own, s.InForce)
}
