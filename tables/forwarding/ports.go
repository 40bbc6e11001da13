// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-net/sluice/bpf"
)

const sharedPortsAuto = "auto"

var (
	unprivilegedPorts = bpf.PortRange{First: 1024, Last: 65535}
	nodePorts         = bpf.PortRange{First: 30000, Last: 32767} // of Kubernetes, by default
	defaultLocalPorts = bpf.PortRange{First: 32768, Last: 60999} // of the kernel
)

// sharedPorts parses --shared-ports. The reason is why auto cannot keep clear of
// the node's own ports.
func sharedPorts(text string, procfs Procfs) (ranges [bpf.SharedPortRanges]bpf.PortRange, reason string, err error) {
	list, reason, err := sharedPortList(text, procfs)
	if err != nil {
		return ranges, "", err
	}
	if len(list) > len(ranges) {
		return ranges, "", fmt.Errorf("--shared-ports %s: there is room for %d ranges", text, len(ranges))
	}
	copy(ranges[:], list)
	return ranges, reason, nil
}

func sharedPortList(text string, procfs Procfs) (list []bpf.PortRange, reason string, err error) {
	if text != sharedPortsAuto {
		for item := range strings.SplitSeq(text, ",") {
			r, err := parsePorts(item)
			if err != nil {
				return nil, "", fmt.Errorf("--shared-ports %s: %w", text, err)
			}
			list = append(list, r)
		}
		return list, "", nil
	}
	local, err := localPorts(procfs)
	if err != nil {
		return nil, "", err
	}
	list = without([]bpf.PortRange{unprivilegedPorts}, nodePorts)
	if clear := without(list, local); len(clear) > 0 {
		return clear, "", nil
	}
	// The programs keep pods from the ports of connections that they see.
	return list, fmt.Sprintf("ip_local_port_range %d-%d leaves no shared ports: the node's own are shared", local.First, local.Last), nil
}

// parsePorts parses FIRST-LAST, or one port.
func parsePorts(text string) (r bpf.PortRange, err error) {
	first, last, found := strings.Cut(strings.TrimSpace(text), "-")
	if !found {
		last = first
	}
	a, errFirst := strconv.ParseUint(first, 10, 16)
	b, errLast := strconv.ParseUint(last, 10, 16)
	if errFirst != nil || errLast != nil || a == 0 || a > b {
		return r, fmt.Errorf("%q is no range of ports, such as 10000-29999", text)
	}
	return bpf.PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// localPorts are the ports that the node uses for its own connections.
func localPorts(procfs Procfs) (r bpf.PortRange, err error) {
	path := filepath.Join(string(procfs), "sys/net/ipv4/ip_local_port_range")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return defaultLocalPorts, nil
	}
	if err != nil {
		return r, fmt.Errorf("read the node's range of ports for --shared-ports=auto: %w", err)
	}
	if _, err := fmt.Sscan(string(b), &r.First, &r.Last); err != nil {
		return r, fmt.Errorf("parse %s for --shared-ports=auto: %q: %w", path, strings.TrimSpace(string(b)), err)
	}
	return r, nil
}

// without returns ranges less another one.
func without(ranges []bpf.PortRange, hole bpf.PortRange) (rest []bpf.PortRange) {
	for _, r := range ranges {
		if hole.Last < r.First || hole.First > r.Last {
			rest = append(rest, r)
			continue
		}
		if r.First < hole.First {
			rest = append(rest, bpf.PortRange{First: r.First, Last: hole.First - 1})
		}
		if r.Last > hole.Last {
			rest = append(rest, bpf.PortRange{First: hole.Last + 1, Last: r.Last})
		}
	}
	return rest
}
