// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The backstop runs at netfilter's FORWARD and LOCAL_IN hooks, before what drops there
// or changes the mark (mangle is at -150), behind the translation of services and long
// before masquerading. The kernel
// refuses two programs of one priority and cannot replace one in its link, so a
// new one takes another of these priorities before the old one goes.
const (
	firstPriority = -170
	lastPriority  = -160
)

// hook is a place of the backstop. Each of the two protocol families has its own.
type hook struct {
	name     string // with which the names of pins begin
	protocol link.NetfilterProtocolFamily
	number   link.NetfilterInetHook
}

var hooks = []hook{
	{"backstop4", link.NetfilterProtoIPv4, link.NetfilterInetForward},
	{"backstop6", link.NetfilterProtoIPv6, link.NetfilterInetForward},
	{"backstop4in", link.NetfilterProtoIPv4, link.NetfilterInetLocalIn},
	{"backstop6in", link.NetfilterProtoIPv6, link.NetfilterInetLocalIn},
}

func (h hook) pinName(priority int32) string { return fmt.Sprintf("%s_%d", h.name, priority) }

// priority returns the priority in the name of a pin.
func (h hook) priority(pin string) (priority int32, ok bool) {
	text, ok := strings.CutPrefix(pin, h.name+"_")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), err == nil
}

// isBackstop reports whether a pin is one of the backstop's.
func isBackstop(pin string) bool {
	for _, h := range hooks {
		if strings.HasPrefix(pin, h.name+"_") {
			return true
		}
	}
	return false
}

// updateBackstop has the hooks of both families run a program, and
// returns the number of one of the links.
func (l links) updateBackstop(program *ebpf.Program) (id link.ID, err error) {
	for _, h := range hooks {
		if id, err = l.updateHook(h, program); err != nil {
			return 0, fmt.Errorf("attach backstop: %w", err)
		}
	}
	return id, nil
}

// updateHook attaches a program unless it is, and then drops all others.
func (l links) updateHook(h hook, program *ebpf.Program) (link.ID, error) {
	pins, err := l.names()
	if err != nil {
		return 0, err
	}
	id, kept, err := l.findBackstop(h, pins, program)
	if err != nil {
		return 0, err
	}
	if kept != "" {
		if priority, _ := h.priority(kept); !l.isTaken(h, priority, program) {
			kept = "" // its link was detached
		}
	}
	if kept == "" {
		if id, kept, err = l.attachBackstop(h, program); err != nil {
			return 0, err
		}
	}
	for _, pin := range pins {
		if _, ok := h.priority(pin); ok && pin != kept {
			err = errors.Join(err, l.detach(pin))
		}
	}
	return id, err
}

// findBackstop returns the pinned link that runs the program, none if none does.
func (l links) findBackstop(h hook, pins []string, program *ebpf.Program) (id link.ID, kept string, err error) {
	info, err := program.Info()
	if err != nil {
		return 0, "", fmt.Errorf("look at program: %w", err)
	}
	wanted, _ := info.ID()
	for _, pin := range pins {
		priority, ok := h.priority(pin)
		if !ok {
			continue
		}
		a, err := l.load(pin)
		if err != nil {
			return 0, "", err
		}
		if a == nil {
			continue
		}
		nf := a.Info.Netfilter()
		a.Close()
		if a.Info.Program == wanted && nf != nil && nf.ProtocolFamily == h.protocol &&
			nf.Hook == h.number && nf.Priority == priority {
			return a.Info.ID, pin, nil
		}
	}
	return 0, "", nil
}

// isTaken reports whether a program runs at a priority of a hook. The kernel does not say of a
// link that it was detached, but it refuses a second program of the same priority.
func (l links) isTaken(h hook, priority int32, program *ebpf.Program) bool {
	made, err := l.attachAt(h, priority, program)
	if err == nil {
		made.Close()
	}
	return err != nil
}

func (l links) attachAt(h hook, priority int32, program *ebpf.Program) (made link.Link, err error) {
	err = l.ns.do(func() (err error) {
		made, err = link.AttachNetfilter(link.NetfilterOptions{
			Program: program, ProtocolFamily: h.protocol, Hook: h.number, Priority: priority,
		})
		return err
	})
	return made, err
}

// attachBackstop attaches a program at the first priority that is free.
func (l links) attachBackstop(h hook, program *ebpf.Program) (id link.ID, pin string, err error) {
	for priority := int32(firstPriority); priority <= lastPriority; priority++ {
		var made link.Link
		made, err = l.attachAt(h, priority, program)
		if errors.Is(err, unix.EBUSY) {
			continue
		}
		if err != nil {
			return 0, "", fmt.Errorf("%s at priority %d: %w", h.name, priority, err)
		}
		pin = h.pinName(priority)
		id, err = l.pin(made, pin)
		return id, pin, err
	}
	return 0, "", fmt.Errorf("%s: priorities %d to %d are all taken: %w", h.name, firstPriority, lastPriority, err)
}
