// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// Names of what is asked with, in errors.
const (
	FieldFrom     = "from"
	FieldTo       = "to"
	FieldPort     = "port"
	FieldProtocol = "protocol"
)

// Error says what is wrong with a question.
type Error = tables.FieldError

func errorf(field, format string, args ...any) error {
	return Error{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// Traffic is a protocol and the destination's port, or the type of ICMP.
type Traffic struct {
	Protocol uint8
	Port     uint16

	// Name is the name of a port, which the receiver resolves. Port is 0 then.
	Name string
}

// Protocols of IP.
const (
	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58
	protocolSCTP   = 132
)

// protocolName is as in the table of policies.
func protocolName(number uint8) string {
	_, name, _ := strings.Cut(tables.PolicyPort{Protocol: number, Last: 65535}.String(), "/")
	return name
}

// protocolNumbers are the protocols by name, and by number.
var protocolNumbers = func() map[string]uint8 {
	numbers := map[string]uint8{}
	for n := range 255 {
		numbers[protocolName(uint8(n+1))] = uint8(n + 1)
		numbers[strconv.Itoa(n+1)] = uint8(n + 1)
	}
	return numbers
}()

// ParseTraffic parses PORT, PORT/PROTOCOL, PROTOCOL:PORT, or PROTOCOL where
// there are no ports; the protocol may also be given beside it, and is TCP if it
// is not given at all. A port is a number or a name; of ICMP it is the type.
func ParseTraffic(port, protocol string) (t Traffic, err error) {
	if text, before, after := port, "", ""; strings.ContainsAny(text, "/:") {
		if before, after, _ = strings.Cut(text, "/"); after == "" {
			after, before, _ = strings.Cut(text, ":")
		}
		if protocol != "" && !strings.EqualFold(after, protocol) {
			return t, errorf(FieldProtocol, "%q and %q are two protocols", protocol, port)
		}
		port, protocol = before, after
	} else if _, known := protocolNumbers[strings.ToLower(port)]; known && protocol == "" {
		if _, err := strconv.Atoi(port); err != nil {
			port, protocol = "", port
		}
	}
	if protocol == "" {
		protocol = "tcp"
	}
	var known bool
	if t.Protocol, known = protocolNumbers[strings.ToLower(protocol)]; !known {
		return t, errorf(FieldProtocol, "unknown protocol %q: want tcp, udp, sctp, icmp, icmpv6, or a number", protocol)
	}
	return t, t.parsePort(port)
}

func (t Traffic) isICMP() bool { return t.Protocol == protocolICMP || t.Protocol == protocolICMPv6 }

func (t Traffic) hasPorts() bool {
	return t.Protocol == protocolTCP || t.Protocol == protocolUDP || t.Protocol == protocolSCTP
}

func (t *Traffic) parsePort(text string) error {
	number, err := strconv.ParseUint(text, 10, 16)
	switch {
	case !t.hasPorts() && !t.isICMP():
		if text != "" && number != 0 || text != "" && err != nil {
			return errorf(FieldPort, "%s has no ports", protocolName(t.Protocol))
		}
	case t.isICMP() && (err != nil || number > 255):
		return errorf(FieldPort, "%q is no type of ICMP: want 0 to 255, as in 8/icmp", text)
	case err == nil:
		t.Port = uint16(number)
	case text == "":
		return errorf(FieldPort, "want a port, as in 80 or 53/udp")
	case strings.Trim(text, "0123456789") == "":
		return errorf(FieldPort, "%q is no port: want 0 to 65535", text)
	default:
		t.Name = text
	}
	return nil
}

// String is as in 80/tcp.
func (t Traffic) String() string {
	if t.Name != "" {
		return t.Name + "/" + protocolName(t.Protocol)
	}
	return strconv.Itoa(int(t.Port)) + "/" + protocolName(t.Protocol)
}
