// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachTypes are the directions in which programs at devices see packets.
var attachTypes = map[Program]ebpf.AttachType{
	ProgramFromPod:     ebpf.AttachTCXIngress,
	ProgramToPod:       ebpf.AttachTCXEgress,
	ProgramFromOverlay: ebpf.AttachTCXIngress,
	ProgramFromNetdev:  ebpf.AttachTCXIngress,
	ProgramToNetdev:    ebpf.AttachTCXEgress,
}

// AttachTypeOf returns in which direction a program at devices sees packets.
func AttachTypeOf(p Program) ebpf.AttachType { return attachTypes[p] }

// RunsAtDevice reports whether a program is for devices.
func RunsAtDevice(p Program) bool {
	_, found := attachTypes[p]
	return found
}

// LinkName is the name under which the link of a program at a device is pinned.
func LinkName(ifIndex int, p Program) string { return fmt.Sprintf("%s_%d", p, ifIndex) }

// PinnedLink is a link that is alive.
type PinnedLink struct {
	link.Link
	Info *link.Info
}

// LoadLink opens a pinned link. It returns nil if there is none; a pin that is no
// link is as good as none.
func LoadLink(path string) (*PinnedLink, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, nil
	}
	info, err := pinned.Info()
	if err != nil {
		pinned.Close()
		return nil, fmt.Errorf("look at link %s: %w", filepath.Base(path), err)
	}
	return &PinnedLink{pinned, info}, nil
}

// LoadDeviceLink opens the link of a program at a device that is pinned in a
// directory, and returns nil if there is none that works there: the link of a
// device that is gone has no device any more.
func LoadDeviceLink(dir string, ifIndex int, p Program) (*PinnedLink, error) {
	l, err := LoadLink(filepath.Join(dir, LinkName(ifIndex, p)))
	if l == nil || err != nil {
		return nil, err
	}
	if tcx := l.Info.TCX(); tcx == nil || int(tcx.Ifindex) != ifIndex ||
		ebpf.AttachType(tcx.AttachType) != attachTypes[p] {
		l.Close()
		return nil, nil
	}
	return l, nil
}

// ErrAttached says that another process attached a program to the device in the meantime.
var ErrAttached = errors.New("a link that works is pinned already")

// AttachDevice attaches a program at a device of the calling thread's network
// namespace, before all that others have attached there, and pins the link in the
// place of one that does not work. One that works, and is pinned since the caller
// looked, stays: the error is [ErrAttached], and nothing is attached. So the CNI plugin
// and an agent that attach at the same time do not replace each other's link.
func AttachDevice(dir string, ifIndex int, p Program, program *ebpf.Program) (link.ID, error) {
	made, err := link.AttachTCX(link.TCXOptions{
		Interface: ifIndex, Program: program, Attach: attachTypes[p], Anchor: link.Head(),
	})
	if err != nil {
		return 0, fmt.Errorf("attach %s to device %d: %w", p, ifIndex, err)
	}
	return pinLink(dir, made, LinkName(ifIndex, p), func() (bool, error) {
		is, err := LoadDeviceLink(dir, ifIndex, p)
		if is != nil {
			is.Close()
		}
		return is != nil, err
	})
}

// PinLink pins a new link where another may be, and closes it.
func PinLink(dir string, made link.Link, name string) (link.ID, error) {
	return pinLink(dir, made, name, func() (bool, error) { return false, nil })
}

// pinLink pins a new link and closes it, which ends it if it could not be pinned. A
// former one is replaced unless it works.
func pinLink(dir string, made link.Link, name string, works func() (bool, error)) (link.ID, error) {
	defer made.Close()
	info, err := made.Info()
	if err != nil {
		return 0, fmt.Errorf("look at link %s: %w", name, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("create directory of links: %w", err)
	}
	path := filepath.Join(dir, name)
	err = made.Pin(path)
	if errors.Is(err, fs.ErrExist) {
		if working, err := works(); err != nil {
			return 0, err
		} else if working {
			return 0, fmt.Errorf("pin link %s: %w", name, ErrAttached)
		}
		if err := DetachPinned(path); err != nil {
			return 0, err
		}
		err = made.Pin(path)
	}
	if err != nil {
		return 0, fmt.Errorf("pin link %s: %w", name, err)
	}
	return info.ID, nil
}
