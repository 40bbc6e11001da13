// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// ErrDeviceGone says that a device went before, or while, a program was attached.
var ErrDeviceGone = errors.New("device is gone")

// links are the links pinned in a directory: of programs at devices under
// "<program>_<ifindex>", of the backstop as backstop.go has it.
type links struct {
	dir      string
	programs string // where programs themselves are pinned
	ns       namespace
}

func pinName(ifIndex int, p bpf.Program) string { return bpf.LinkName(ifIndex, p) }

func (l links) path(name string) string { return filepath.Join(l.dir, name) }

// load opens a pinned link. It returns nil if there is none; a pin that is no
// link is as good as none, and is replaced.
func (l links) load(name string) (*bpf.PinnedLink, error) { return bpf.LoadLink(l.path(name)) }

// loadTCX opens the pinned link of a program at a device, and returns nil if
// there is none that works there.
func (l links) loadTCX(ifIndex int, p bpf.Program) (*bpf.PinnedLink, error) {
	return bpf.LoadDeviceLink(l.dir, ifIndex, p)
}

// update has a link that works run a program, in one step, and reports whether
// there is such a link.
func (l links) update(ifIndex int, p bpf.Program, program *ebpf.Program) (id link.ID, ok bool, err error) {
	a, err := l.loadTCX(ifIndex, p)
	if a == nil || err != nil {
		return 0, false, err
	}
	defer a.Close()
	info, err := program.Info()
	if err != nil {
		return 0, false, fmt.Errorf("look at program %s: %w", p, err)
	}
	if wanted, ok := info.ID(); ok && wanted == a.Info.Program {
		return a.Info.ID, true, nil
	}
	err = a.Update(program)
	if errors.Is(err, unix.ENOLINK) || errors.Is(err, unix.EINVAL) { // the device went, or it was another type's program
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("replace program %s: %w", p, err)
	}
	return a.Info.ID, true, nil
}

// attach attaches a program at a device, before all that others have attached
// there, and pins the link in the place of one that does not work. A link that the CNI
// plugin has pinned in the meantime stays, and runs the program.
func (l links) attach(ifIndex int, p bpf.Program, program *ebpf.Program) (id link.ID, err error) {
	if err := l.checkDevice(ifIndex); err != nil {
		return 0, err
	}
	err = l.ns.do(func() (err error) {
		id, err = bpf.AttachDevice(l.dir, ifIndex, p, program)
		return err
	})
	if errors.Is(err, bpf.ErrAttached) { // by the CNI plugin, with a program of a former agent
		var ok bool
		if id, ok, err = l.update(ifIndex, p, program); !ok && err == nil {
			err = bpf.ErrAttached
		}
		return id, err
	}
	if err != nil {
		if gone := l.checkDevice(ifIndex); errors.Is(gone, ErrDeviceGone) {
			return 0, gone
		}
	}
	return id, err
}

// run has a device run a program, by the link that is there or else by a new one, before which it
// calls prepare.
func (l links) run(
	ifIndex int, p bpf.Program, program *ebpf.Program, prepare func(),
) (link.ID, error) {
	id, ok, err := l.update(ifIndex, p, program)
	if ok || err != nil {
		return id, err
	}
	prepare()
	return l.attach(ifIndex, p, program)
}

// pin pins a new link where another may be, and closes it.
func (l links) pin(made link.Link, name string) (link.ID, error) {
	return bpf.PinLink(l.dir, made, name)
}

// detach ends a pinned link, if there is one.
func (l links) detach(name string) error { return bpf.DetachPinned(l.path(name)) }

// names returns the names of the pinned links.
func (l links) names() ([]string, error) { return bpf.PinnedLinks(l.dir) }

// ethernet are the link types, as netlink names them, of devices whose packets
// have an Ethernet header.
var ethernet = map[string]bool{"ether": true, "loopback": true}

// checkDevice returns an error if programs cannot be attached to a device.
func (l links) checkDevice(ifIndex int) error {
	h, err := l.ns.netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	device, err := h.LinkByIndex(ifIndex)
	var notFound vn.LinkNotFoundError
	switch {
	case errors.As(err, &notFound):
		return ErrDeviceGone
	case err != nil:
		return fmt.Errorf("look at device %d: %w", ifIndex, err)
	case !ethernet[device.Attrs().EncapType]:
		return fmt.Errorf("device %s has no Ethernet header, which the programs need: its link type is %s",
			device.Attrs().Name, device.Attrs().EncapType)
	}
	return nil
}
