// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// OverlayAlias is the alias of devices that agents made.
const OverlayAlias = "overlay of sluice"

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenModeNone = 1

// overlayDevices are the operations on the table overlay-devices.
type overlayDevices struct {
	datapath *datapath.Datapath
	links    func() links // asked each time: the agent chooses its maps when it starts
	ns       namespace
}

var _ reconciler.Operations[*tables.OverlayDevice] = &overlayDevices{}

// Update implements [reconciler.Operations].
func (o *overlayDevices) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.OverlayDevice) error {
	if !o.datapath.Loaded() {
		return nil
	}
	return withNetlink(o.ns, func(h *vn.Handle) error {
		device, err := findDevice(h, row.Name)
		if err != nil {
			return err
		}
		if device != nil && !asWanted(device, row) {
			if err := removeOverlay(h, device, row.Name); err != nil {
				return err
			}
			device = nil
		}
		if device == nil {
			if device, err = createOverlay(h, row); err != nil {
				return err
			}
		}
		return o.adjust(h, device, row)
	})
}

// Delete implements [reconciler.Operations].
func (o *overlayDevices) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.OverlayDevice) error {
	if !o.datapath.Loaded() {
		return nil
	}
	_, err := removeOverlays(o.ns, func(name string) bool { return name == row.Name })
	return err
}

// Prune implements [reconciler.Operations].
func (o *overlayDevices) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*tables.OverlayDevice, statedb.Revision]) error {
	if !o.datapath.Loaded() {
		return nil
	}
	wanted := map[string]bool{}
	for row := range rows {
		wanted[row.Name] = true
	}
	_, err := removeOverlays(o.ns, func(name string) bool { return !wanted[name] })
	return err
}

// CleanupOverlay removes the overlay devices that agents have made in the
// network namespace of the process, and returns their names.
func CleanupOverlay() (removed []string, err error) {
	return removeOverlays(0, func(string) bool { return true })
}

func withNetlink(ns namespace, f func(h *vn.Handle) error) error {
	h, err := ns.netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	return f(h)
}

// findDevice returns the device of a name, nil if there is none.
func findDevice(h *vn.Handle, name string) (vn.Link, error) {
	device, err := h.LinkByName(name)
	var notFound vn.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at device %s: %w", name, err)
	}
	return device, nil
}

// asWanted reports whether a device has what cannot be changed in one that exists.
func asWanted(device vn.Link, row *tables.OverlayDevice) bool {
	vxlan, ok := device.(*vn.Vxlan)
	if !ok {
		return false
	}
	local, _ := netip.AddrFromSlice(vxlan.SrcAddr)
	return vxlan.FlowBased && !vxlan.Learning && vxlan.Port == int(row.Port) && local.Unmap() == row.Local.Unmap()
}

// createOverlay makes the device. Packets carry their network identifier and
// remote node with them (external), so one device does for all.
func createOverlay(h *vn.Handle, row *tables.OverlayDevice) (vn.Link, error) {
	attrs := vn.NewLinkAttrs()
	attrs.Name, attrs.MTU = row.Name, row.MTU
	device := &vn.Vxlan{LinkAttrs: attrs, FlowBased: true, Learning: false, Port: int(row.Port)}
	if row.Local.IsValid() {
		device.SrcAddr = row.Local.AsSlice()
	}
	// The kernel knows a second device on the port here, or when it is set up.
	err := h.LinkAdd(device)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EADDRINUSE) {
		return nil, portTaken(h, row, err)
	}
	if err != nil {
		return nil, fmt.Errorf("create VXLAN device %s: %w", row.Name, err)
	}
	return findDevice(h, row.Name)
}

// adjust sets what can be changed in a device that exists, and sets it up.
func (o *overlayDevices) adjust(h *vn.Handle, device vn.Link, row *tables.OverlayDevice) error {
	if device == nil {
		return fmt.Errorf("device %s is gone again", row.Name)
	}
	attrs := device.Attrs()
	if attrs.Alias != OverlayAlias {
		if err := h.LinkSetAlias(device, OverlayAlias); err != nil {
			return fmt.Errorf("mark device %s: %w", row.Name, err)
		}
	}
	if attrs.MTU != row.MTU && row.MTU != 0 {
		if err := h.LinkSetMTU(device, row.MTU); err != nil {
			return fmt.Errorf("set MTU %d of device %s: %w", row.MTU, row.Name, err)
		}
	}
	if attrs.RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	// It needs no address of its own. A kernel without IPv6 knows no such mode.
	if err := h.LinkSetIP6AddrGenMode(device, addrGenModeNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("have device %s without link-local address: %w", row.Name, err)
	}
	if err := o.guard(attrs.Index); err != nil {
		return fmt.Errorf("attach %s before device %s is set up: %w",
			bpf.ProgramFromOverlay, row.Name, err)
	}
	err := h.LinkSetUp(device)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return portTaken(h, row, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("set up device %s: the node has no address %s: %w", row.Name, row.Local, err)
	case err != nil:
		return fmt.Errorf("set up device %s: %w", row.Name, err)
	}
	return nil
}

// guard attaches from_overlay: without it the host takes all that machines send to the device. The
// program drops all until there are maps.
func (o *overlayDevices) guard(ifIndex int) error {
	program := o.datapath.Program(bpf.ProgramFromOverlay)
	_, err := o.links().run(ifIndex, bpf.ProgramFromOverlay, program, func() {})
	return err
}

// portTaken says who has the UDP port.
func portTaken(h *vn.Handle, row *tables.OverlayDevice, cause error) error {
	other := "another program"
	if devices, err := h.LinkList(); err == nil {
		for _, d := range devices {
			if vxlan, ok := d.(*vn.Vxlan); ok && vxlan.Port == int(row.Port) && vxlan.Name != row.Name {
				other = "VXLAN device " + vxlan.Name
			}
		}
	}
	return fmt.Errorf("device %s cannot have UDP port %d, which %s uses: choose another with --overlay-port on all nodes: %w",
		row.Name, row.Port, other, cause)
}

// removeOverlay removes a device that is in the way, unless it cannot be an agent's.
func removeOverlay(h *vn.Handle, device vn.Link, name string) error {
	if device.Type() != "vxlan" {
		return fmt.Errorf("device %s is there already, and a %s: remove or rename it", name, device.Type())
	}
	if err := h.LinkDel(device); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("replace device %s: %w", name, err)
	}
	return nil
}

// removeOverlays removes devices that agents made, and returns their names.
func removeOverlays(ns namespace, unwanted func(name string) bool) (removed []string, err error) {
	err = withNetlink(ns, func(h *vn.Handle) error {
		devices, err := h.LinkList()
		if err != nil && !errors.Is(err, vn.ErrDumpInterrupted) {
			return fmt.Errorf("list devices: %w", err)
		}
		var errs []error
		for _, d := range devices {
			name := d.Attrs().Name
			if d.Type() != "vxlan" || d.Attrs().Alias != OverlayAlias || !unwanted(name) {
				continue
			}
			if err := h.LinkDel(d); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("remove device %s: %w", name, err))
				continue
			}
			removed = append(removed, name)
		}
		return errors.Join(errs...)
	})
	return removed, err
}
