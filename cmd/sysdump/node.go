// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// sysctls are the kernel parameters that matter to the datapath, as patterns below
// /proc/sys.
var sysctls = []string{
	"kernel/unprivileged_bpf_disabled", "kernel/bpf_stats_enabled", "kernel/tainted",
	"net/core/bpf_jit_*", "net/core/default_qdisc", "net/core/netdev_max_backlog",
	"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/ip_nonlocal_bind",
	"net/ipv4/tcp_mtu_probing", "net/ipv4/fib_multipath_hash_policy",
	"net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/accept_local", "net/ipv4/conf/*/src_valid_mark",
	"net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/forwarding",
	"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_tcp_loose",
}

// kernelFiles are what else says which kernel this is, and what it lets one do.
var kernelFiles = []string{
	"/proc/version", "/proc/cmdline", "/proc/meminfo", "/proc/loadavg", "/proc/uptime", "/proc/net/snmp", "/proc/net/netstat",
	"/etc/os-release", "/sys/kernel/security/lockdown", "/sys/kernel/security/lsm",
}

// mostLines is of how many lines what the kernel lists is: a node may have a
// million routes.
const mostLines = 20_000

// Node adds what the kernel and the node's network are like.
func Node(a *Archive) {
	for _, path := range kernelFiles {
		a.file("kernel/"+filepath.Base(path)+".txt", path)
	}
	a.Text("kernel/sysctls.txt", func(w io.Writer) error { return writeSysctls(w, "/proc/sys") })
	a.Text("kernel/mounts.txt", writeMounts)
	a.Text("node/links.txt", list(func() ([]netlink.Link, error) { return netlink.LinkList() }, describeLink))
	a.Text("node/addresses.txt", list(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) },
		func(x netlink.Addr) string {
			return fmt.Sprintf("ifindex %d %s scope %d flags %#x", x.LinkIndex, x, x.Scope, x.Flags)
		}))
	a.Text("node/routes.txt", list(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE) // table 0: all
	}, netlink.Route.String))
	a.Text("node/rules.txt", list(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) }, netlink.Rule.String))
	a.Text("node/neighbours.txt", list(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) },
		func(n netlink.Neigh) string {
			return fmt.Sprintf("ifindex %d %s state %#x", n.LinkIndex, n.String(), n.State)
		}))
}

// file adds a file of the system as it is. One that does not exist is not missed.
func (a *Archive) file(name, path string) {
	a.Text(name, func(w io.Writer) error {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}

// list writes a line for each of what the kernel lists.
func list[T any](get func() ([]T, error), describe func(T) string) func(io.Writer) error {
	return func(w io.Writer) error {
		all, err := get()
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then most is there
			return err
		}
		for _, x := range all[:min(mostLines, len(all))] {
			if _, err := fmt.Fprintln(w, describe(x)); err != nil {
				return err
			}
		}
		if rest := len(all) - mostLines; rest > 0 {
			return fmt.Errorf("%d more: %w", rest, errCut)
		}
		return err
	}
}

func describeLink(l netlink.Link) string {
	attrs := l.Attrs()
	return fmt.Sprintf("%d %s %s mtu %d state %s flags %s master %d peer %d address %s alias %q",
		attrs.Index, attrs.Name, l.Type(), attrs.MTU, attrs.OperState, attrs.Flags, attrs.MasterIndex, attrs.ParentIndex, attrs.HardwareAddr, attrs.Alias)
}

func writeSysctls(w io.Writer, root string) error {
	var errs error
	for _, pattern := range sysctls {
		paths, _ := filepath.Glob(filepath.Join(root, pattern)) // fails for a wrong pattern only
		slices.Sort(paths)
		for _, path := range paths {
			value, err := os.ReadFile(path)
			if err != nil {
				errs = errors.Join(errs, err)
				continue
			}
			name, _ := filepath.Rel(root, path) // it is below
			if _, err := fmt.Fprintf(w, "%s = %s\n", name, strings.TrimSpace(string(value))); err != nil {
				return err
			}
		}
	}
	return errs
}

// writeMounts writes the mounts that matter: of BPF, cgroups, and what is writable of /proc.
func writeMounts(w io.Writer) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, " - bpf ") || strings.Contains(line, " - cgroup2 ") || strings.Contains(line, " - proc ") ||
			strings.Contains(line, " - sysfs ") || strings.Contains(line, "sluice") {
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
	}
	return nil
}
