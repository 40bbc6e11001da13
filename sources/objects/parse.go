// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	netutils "k8s.io/utils/net"

	"github.com/sluice-net/sluice/tables"
)

// parseIP parses an address. Zeros before a number mean nothing, as to API servers and kube-proxy:
// an address that these use must not be hidden from the agent.
func parseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		legacy, valid := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
		if !valid {
			return a, parseError(s, err)
		}
		a = legacy
	}
	return a.Unmap(), nil
}

// parseAddr parses the address of one host. IPv4 addresses written as IPv6 ones
// become IPv4 addresses.
func parseAddr(s string) (netip.Addr, error) {
	a, err := parseIP(s)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case a.Zone() != "":
		return netip.Addr{}, quoted(s, "has a zone")
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback():
		return netip.Addr{}, quoted(s, "is not the address of a host")
	}
	return a, nil
}

// parsePrefix parses a prefix and clears the bits after its length.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, parseError(s, err)
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, quoted(s, "is an IPv4 prefix written as IPv6, write it as IPv4")
	}
	return p.Masked(), nil
}

func quoted(s, reason string) error { return errors.New(strconv.Quote(s) + ": " + reason) }

// parseError takes from the texts of package netip what names its functions:
// `netip.ParsePrefix("10.0.0.0/33"): prefix length out of range`.
func parseError(s string, err error) error {
	if s == "" {
		return errors.New("is empty")
	}
	reason := err.Error()
	if i := strings.LastIndex(reason, "): "); i >= 0 {
		reason = reason[i+len("): "):]
	}
	return quoted(s, reason)
}

// addr appends the address of a field.
func (e *fieldErrors) addr(to []netip.Addr, field, s string) []netip.Addr {
	a, err := parseAddr(s)
	if err != nil {
		e.note(field, err.Error())
		return to
	}
	return append(to, a)
}

// distinct removes values that a list has already. It takes time in proportion to the list: some
// are as long as an object can be.
func distinct[T comparable](list []T) []T {
	if len(list) < 2 {
		return list
	}
	seen := make(map[T]bool, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		was := seen[v]
		seen[v] = true
		return was
	})
}

// prefixes parses the prefixes of a list field, once each.
func (e *fieldErrors) prefixes(field string, texts []string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for i, s := range texts {
		p, err := parsePrefix(s)
		if err != nil {
			e.add(field+"["+strconv.Itoa(i)+"]", err.Error())
			continue
		}
		out = append(out, p)
	}
	return distinct(out)
}

// port is a port of a container or of a Cilium endpoint.
type port struct {
	name, protocol string
	number         int64
}

// maxNumbers is how many numbers one name of a port may have. Each of them takes a verdict in the
// rulesets of all policies that name it, and counts in their share of the map, not in the pod's.
const maxNumbers = 8

// namedPorts returns those of the ports that have a name, sorted so that equal
// pods have equal lists. Containers may give several numbers one name: it means the
// first ones of these.
func (e *fieldErrors) namedPorts(field func(i int) string, ports []port) []tables.NamedPort {
	type named struct {
		name     string
		protocol uint8
	}
	var out []tables.NamedPort
	numbers := map[named]map[uint16]bool{}
	for i, p := range ports {
		if p.name == "" {
			continue
		}
		protocol, known := e.protocol(field(i)+".protocol", p.protocol)
		if !known {
			continue
		}
		number, valid := e.portNumber(field(i), p.number)
		if !valid {
			continue
		}
		of := named{p.name, protocol}
		if numbers[of] == nil {
			numbers[of] = map[uint16]bool{}
		}
		if !numbers[of][number] && len(numbers[of]) == maxNumbers {
			e.note(field(i)+".name", fmt.Sprintf("%q has more than %d numbers", p.name, maxNumbers))
			continue
		}
		numbers[of][number] = true
		out = append(out, tables.NamedPort{
			Name: internString(p.name), Protocol: protocol, Port: number,
		})
	}
	slices.SortFunc(out, tables.NamedPort.Compare)
	return slices.Compact(out)
}

// protocol returns the IP protocol of the Kubernetes protocol name in a field.
func (e *fieldErrors) protocol(field, name string) (number uint8, known bool) {
	if number, known = protocolNumber(name); !known {
		e.note(field, strconv.Quote(name)+": must be TCP, UDP or SCTP")
	}
	return number, known
}

// portNumber returns the number of the port in a field.
func (e *fieldErrors) portNumber(field string, number int64) (port uint16, valid bool) {
	if number < 1 || number > 65535 {
		e.note(field, strconv.FormatInt(number, 10)+" is no port number")
		return 0, false
	}
	return uint16(number), true
}

// protocolNumber returns the IP protocol of a Kubernetes protocol name. None is
// TCP.
func protocolNumber(name string) (number uint8, known bool) {
	switch strings.ToUpper(name) {
	case "TCP", "":
		return 6, true
	case "UDP":
		return 17, true
	case "SCTP":
		return 132, true
	}
	return 0, false
}
