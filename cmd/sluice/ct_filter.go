// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
)

// ctFilter chooses connections or translations by flags.
type ctFilter struct {
	match api.CTMatch // but for what has to be parsed or resolved
	pods  []string
	ports []string
}

const filterHelp = `
Filters may be repeated: one of each sort has to match. A pod is given as for
sluice monitor, by a name or its beginning, an address or a prefix.`

// addTuple adds the flags that choose by addresses, ports and the like.
func (f *ctFilter) addTuple(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.pods, "pod", nil, "only from or to a pod: namespace/name, the beginning of it or of a name, an address, or a prefix")
	flags.StringArrayVar(&f.match.IPs, "ip", nil, "only from or to an address or prefix")
	flags.StringArrayVar(&f.ports, "port", nil, "only from or to a port, or of an ICMP echo with this identifier")
	flags.StringArrayVar(&f.match.Protocols, "protocol", nil, "only of a protocol: tcp, udp, icmp, icmpv6, sctp, or a number")
	flags.StringArrayVar(&f.match.Directions, "direction", nil, "only out or in: begun by a pod or towards it; of translations: its packets or the replies")
	flags.StringVar(&f.match.Family, "family", "", "only ipv4 or ipv6")
}

// addState adds the flags that choose by the state of connections.
func (f *ctFilter) addState(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.match.States, "state", nil, "only in a state: "+strings.Join(states(), ", "))
	flags.BoolVar(&f.match.Expired, "expired", false, "only what has expired and was not removed yet")
}

// empty reports whether nothing was asked for.
func (f *ctFilter) empty() bool { return f.match.Empty() && len(f.pods)+len(f.ports) == 0 }

// check returns what is wrong with the flags.
func (f *ctFilter) check() error {
	f.match.Ports = nil
	for _, text := range f.ports {
		port, err := ctmap.ParsePort(text)
		if err != nil {
			return agent.UsageErrorf("%w", err)
		}
		f.match.Ports = append(f.match.Ports, port)
	}
	if err := checkPods(f.pods); err != nil {
		return err
	}
	_, err := parseMatch(&f.match)
	return err
}

// resolve looks up the pods.
func (f *ctFilter) resolve(n *names) (err error) {
	f.match.Pods, err = n.resolve(f.pods)
	return err
}

// resolveBy looks up the pods and asks the agent for that only if it has to.
func (f *ctFilter) resolveBy(ctx context.Context, server string) error {
	n := &names{}
	if slices.ContainsFunc(f.pods, func(text string) bool { return !isAddress(text) }) {
		c, err := connect(ctx, server)
		if err != nil {
			return fmt.Errorf("find pods: %w", err)
		}
		defer c.close()
		if n, err = c.names(ctx); err != nil {
			return err
		}
	}
	return f.resolve(n)
}

func parseMatch(m *api.CTMatch) (*api.ParsedMatch, error) {
	match, err := m.Parse()
	if err == nil {
		return match, nil
	}
	if cause := errors.Unwrap(err); cause != nil { // without the index in a list
		err = cause
	}
	return nil, agent.UsageErrorf("%w", err)
}

// selection is what both sluice ct list and sluice nat list are asked for.
type selection struct {
	ctFilter
	bpffs, server *string
	out           output
}

func (s *selection) add(flags *pflag.FlagSet) {
	s.addTuple(flags)
	s.bpffs = bpffsFlag(flags)
	s.server = serverFlag(flags)
	s.out = tableOutputFlag(flags)
}

// named looks up the pods, and returns the names of all.
func (s *selection) named(ctx context.Context, stderr io.Writer) (*names, *api.ParsedMatch, error) {
	n, err := askNames(ctx, *s.server, stderr)
	if err != nil {
		return nil, nil, err
	}
	if err := s.resolve(n); err != nil {
		return nil, nil, err
	}
	match, err := parseMatch(&s.match)
	return n, match, err
}
