// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"runtime"
	"unsafe"

	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Commands of ethtool that turn one offload on or off, in the order in which
// they may be turned off: segmentation needs checksums.
var offloads = []uint32{
	unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO, unix.ETHTOOL_STXCSUM, unix.ETHTOOL_SRXCSUM,
}

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct {
	command uint32
	data    uint32
}

// ifreq is struct ifreq with a pointer.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// SetOffloads turns checksum and segmentation offloads of all devices on or off:
// off, packets are what they would be on a wire.
func (c *Cluster) SetOffloads(on bool) error {
	namespaces := []*Namespace{c.fabric, c.World.Namespace}
	for _, n := range c.Nodes {
		namespaces = append(namespaces, n.Namespace)
	}
	c.mu.Lock()
	for p := range c.pods {
		namespaces = append(namespaces, p.Namespace)
	}
	c.mu.Unlock()
	for _, n := range namespaces {
		if err := n.setOffloads(on); err != nil {
			return err
		}
	}
	return nil
}

func (n *Namespace) setOffloads(on bool) error {
	links, err := n.handle.LinkList()
	if err != nil {
		return fmt.Errorf("list devices of %s: %w", n.Name, err)
	}
	return n.Run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, link := range links {
			if _, is := link.(*vn.Veth); !is {
				continue
			}
			for i := range offloads {
				command := offloads[i]
				if on { // in the opposite order
					command = offloads[len(offloads)-1-i]
				}
				if err := ethtool(fd, link.Attrs().Name, command, on); err != nil {
					return fmt.Errorf("set offload %#x of %s of %s: %w", command, link.Attrs().Name, n.Name, err)
				}
			}
		}
		return nil
	})
}

func ethtool(fd int, device string, command uint32, on bool) error {
	value := &ethtoolValue{command: command}
	if on {
		value.data = 1
	}
	request := &ifreq{data: unsafe.Pointer(value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(request)))
	runtime.KeepAlive(value)
	if errno != 0 {
		return errno
	}
	return nil
}
