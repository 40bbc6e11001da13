// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func commands(s *Source) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"events/inject": script.Command(
			script.CmdUsage{
				Summary: "Report events as the programs would; only while none are loaded",
				Args:    "file",
				Detail: []string{
					"The YAML file is a list. An event has source and destination: address or address:port,",
					"and may have kind (drop, flow), reason, direction (egress, ingress), protocol, tcpFlags,",
					"icmpType, length, ifIndex, ruleset, group, cookie, gateway, egress (address:port), and count.",
				},
			},
			func(state *script.State, args ...string) (script.WaitFunc, error) {
				if len(args) != 1 {
					return nil, script.ErrUsage
				}
				if s.Reports() {
					return nil, errors.New("programs are loaded: events are theirs to report")
				}
				data, err := os.ReadFile(state.Path(args[0]))
				if err != nil {
					return nil, fmt.Errorf("read events: %w", err)
				}
				return nil, s.inject(data)
			},
		),
	})
}

// inject handles the events of a YAML file.
func (s *Source) inject(data []byte) error {
	var list []injected
	if err := yaml.UnmarshalStrict(data, &list); err != nil {
		return fmt.Errorf("parse events: %w", err)
	}
	var raws []bpf.Event
	for i, item := range list {
		raw, err := item.event()
		if err != nil {
			return fmt.Errorf("parse event %d: %w", i, err)
		}
		for range max(item.Count, 1) {
			raws = append(raws, raw)
		}
	}
	slot := s.enricher.ownSlot()
	for i := range raws {
		raws[i].Slot = slot
		s.handle(&raws[i])
	}
	return nil
}

// ownSlot returns the slot that this agent writes to, whose numbers the file has.
func (e *enricher) ownSlot() uint8 {
	for row := range e.Slots.All(e.DB.ReadTxn()) {
		if row.Own {
			return uint8(row.Number)
		}
	}
	return 0
}

// injected is an event in a file.
type injected struct {
	Kind        string `json:"kind"`
	Reason      string `json:"reason"`
	Direction   string `json:"direction"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Protocol    string `json:"protocol"`
	TCPFlags    string `json:"tcpFlags"`
	ICMPType    uint8  `json:"icmpType"`
	Length      uint32 `json:"length"`
	IfIndex     uint32 `json:"ifIndex"`
	Ruleset     uint32 `json:"ruleset"`
	Group       uint32 `json:"group"`
	Cookie      uint32 `json:"cookie"`
	Gateway     string `json:"gateway"`
	Egress      string `json:"egress"`
	Count       int    `json:"count"`
}

func (i *injected) event() (e bpf.Event, err error) {
	e = bpf.Event{
		Kind: bpf.EventDrop, Program: bpf.ProgramFromPod, Protocol: unix.IPPROTO_TCP,
		ICMPType: i.ICMPType,
		Length:   i.Length, IfIndex: i.IfIndex, EgressRuleset: i.Ruleset, Group: i.Group,
		Cookie: i.Cookie,
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return e, err
	}
	e.Time = uint64(now.Nano())
	var ok bool
	if i.Kind != "" {
		if e.Kind, ok = kinds[i.Kind]; !ok {
			return e, fmt.Errorf("unknown kind %q", i.Kind)
		}
	}
	if e.Reason, ok = parseReason(i.Reason); !ok {
		return e, fmt.Errorf("unknown reason %q", i.Reason)
	}
	switch i.Direction {
	case "", bpf.DirectionEgress.String():
	case bpf.DirectionIngress.String():
		e.Direction = bpf.DirectionIngress
	default:
		return e, fmt.Errorf("unknown direction %q", i.Direction)
	}
	for number, name := range tables.ProtocolNames {
		if strings.EqualFold(name, i.Protocol) {
			e.Protocol = number
		}
	}
	for bit, letter := range tcpFlagLetters {
		if strings.ContainsRune(i.TCPFlags, letter) {
			e.TCPFlags |= 1 << bit
		}
	}
	if e.Source, e.SourcePort, err = parseEnd(i.Source); err != nil {
		return e, err
	}
	if e.Destination, e.DestPort, err = parseEnd(i.Destination); err != nil {
		return e, err
	}
	if i.Gateway != "" {
		if e.Gateway, _, err = parseEnd(i.Gateway); err != nil {
			return e, err
		}
	}
	if i.Egress != "" {
		e.Egress, e.EgressPort, err = parseEnd(i.Egress)
	}
	e.Family = bpf.FamilyIPv6
	if e.Source.Addr().Is4() {
		e.Family = bpf.FamilyIPv4
	}
	return e, err
}

func parseEnd(text string) (address bpf.Address, port [2]byte, err error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return bpf.AddressFrom(addr), port, nil
	}
	end, err := netip.ParseAddrPort(text)
	binary.BigEndian.PutUint16(port[:], end.Port())
	return bpf.AddressFrom(end.Addr()), port, err
}
