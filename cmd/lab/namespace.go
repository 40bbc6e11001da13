// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"strings"

	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is an anonymous network namespace: it lives as long as it is open,
// or something runs in it.
type Namespace struct {
	Name string // for messages

	ns     netns.NsHandle
	handle *vn.Handle // netlink in the namespace
}

func newNamespace(name string) (*Namespace, error) {
	n := &Namespace{Name: name, ns: netns.None()}
	err := onThread(func() (err error) {
		if n.ns, err = netns.New(); err != nil {
			return err
		}
		n.handle, err = vn.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = n.prepare()
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return n, nil
}

// prepare sets what has to be set before there are devices.
func (n *Namespace) prepare() error {
	err := n.Sysctl(
		// Addresses are unique here: use them at once.
		"net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.default.dad_transmits=0", "net.ipv6.conf.default.accept_ra=0",
		// New namespaces inherit these from the machine.
		"net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0", "net.ipv4.ip_forward=0",
		"net.ipv4.ping_group_range=0 2147483647",
		// What tests connect from, the kernel does not give to others before.
		"net.ipv4.ip_local_reserved_ports=40000-40099,45000",
	)
	if err != nil {
		return err
	}
	return n.up("lo")
}

// Close lets go of the namespace.
func (n *Namespace) Close() {
	if n.handle != nil {
		n.handle.Close()
	}
	if n.ns.IsOpen() {
		_ = n.ns.Close() // sets it to none
	}
}

// Run runs f in the namespace, on a thread of its own. Sockets that f opens stay
// in the namespace; goroutines that it starts are not in it.
func (n *Namespace) Run(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.ns); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// Handle is netlink in the namespace.
func (n *Namespace) Handle() *vn.Handle { return n.handle }

// FD is the file descriptor of the namespace.
func (n *Namespace) FD() int { return int(n.ns) }

// Sysctl sets parameters of the namespace, each as name=value.
func (n *Namespace) Sysctl(settings ...string) error {
	return n.Run(func() error {
		for _, setting := range settings {
			name, value, found := strings.Cut(setting, "=")
			if !found {
				return errors.New("set kernel parameter: want name=value: " + setting)
			}
			if err := os.WriteFile(sysctlPath(name), []byte(value), 0); err != nil {
				return fmt.Errorf("set kernel parameter %s: %w", setting, err)
			}
		}
		return nil
	})
}

// ReadSysctl reads a parameter of the namespace.
func (n *Namespace) ReadSysctl(name string) (value string, err error) {
	err = n.Run(func() error {
		data, err := os.ReadFile(sysctlPath(name))
		value = strings.TrimSpace(string(data))
		return err
	})
	return value, err
}

func sysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }
