// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"strings"
)

// Lines are the answer in few words, as the script command explain prints it.
func (p *Policy) Lines() []string {
	lines := append([]string{"verdict: " + string(p.Verdict)}, p.lines()...)
	if len(p.Ask) > 0 {
		lines = append(lines, "ask: "+strings.Join(p.Ask, ", "))
	}
	if p.Egress != nil {
		lines = append(lines, "leaves: "+string(p.Egress.Verdict)+" "+p.Egress.why())
	}
	if p.Kernel != nil {
		lines = p.Kernel.line(lines)
	}
	return kernelLines(lines, p.AllDifferences())
}

// asBackend is as in "backend 10.1.0.5:8080".
func (p *Policy) asBackend() string { return "backend " + p.destination() }

// destination is the address and the port of a backend.
func (p *Policy) destination() string { return netip.AddrPortFrom(p.To.Address, p.Port).String() }

func (p *Policy) lines() (lines []string) {
	for _, j := range p.Directions {
		lines = append(lines, j.Direction+" "+string(j.Verdict)+": "+j.why())
	}
	for _, b := range p.Backends {
		for _, line := range b.lines() {
			lines = append(lines, b.asBackend()+": "+line)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, p.Reason)
	}
	return lines
}

// Lines are the answer in few words, as the script command explain prints it.
func (a *Egress) Lines() []string {
	lines := []string{"verdict: " + string(a.Verdict), a.why()}
	if a.Ask != "" {
		lines = append(lines, "ask: "+a.Ask)
	}
	if a.Kernel != nil {
		lines = a.Kernel.line(lines)
	}
	return kernelLines(lines, a.Differences)
}

// line adds a line if packets do not use the maps of the answer.
func (s Slots) line(lines []string) []string {
	if text := s.notYet(); text != "" {
		lines = append(lines, "kernel: "+text)
	}
	return lines
}

func kernelLines(lines, differences []string) []string {
	if len(differences) == 0 {
		return append(lines, "kernel: same")
	}
	for _, d := range differences {
		lines = append(lines, "kernel: "+d)
	}
	return lines
}
