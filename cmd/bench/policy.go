// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// policyOptions say how network policy is measured.
type policyOptions struct {
	scenarios []string
	local     int
	peer      string
	samples   int
	prefixes  int // of one more policy, which comes last

	parsed []policyScenario
}

func policyFlags(flags *pflag.FlagSet) *policyOptions {
	o := &policyOptions{}
	flags.StringSliceVar(&o.scenarios, "policy-scenarios",
		[]string{"10000x2000", "50000x10000", "10000xall"},
		"label sets, each of one pod, and policies among them; "+
			"all is one policy by which all pods may reach all")
	flags.IntVar(&o.local, "policy-local", 100, "pods of the measured node, of those")
	flags.IntVar(&o.prefixes, "policy-prefixes", 16000,
		"prefixes of one more policy, which comes last; 0: it does not come")
	flags.IntVar(&o.samples, "policy-samples", 200,
		"how often each event is measured with policies, "+
			"a change of the whole cluster a tenth as often")
	flags.StringVar(&o.peer, "policy-peer", "",
		"program that measures another policy engine on the same label sets, policies and pods, "+
			"by these three arguments; it runs after each scenario that it knows")
	return o
}

// complete checks the options, and shortens what is to be short.
func (o *policyOptions) complete(short bool) error {
	if short {
		o.samples, o.local = min(o.samples, 20), min(o.local, 20)
		o.scenarios, o.prefixes = []string{"2000x1000", "500xall"}, min(o.prefixes, 100)
	}
	if o.samples < 1 || o.local < 1 {
		return errors.New("samples and pods with policies must be positive")
	}
	if o.prefixes < 0 || o.prefixes > maxPrefixes {
		return fmt.Errorf("prefixes of a policy: want 0 to %d", maxPrefixes)
	}
	o.parsed = nil
	for _, text := range o.scenarios {
		s, err := parsePolicyScenario(text)
		if err != nil {
			return err
		}
		s.local = o.local
		if s.identities < s.local {
			return fmt.Errorf("scenario %s has fewer label sets than the node has pods, %d", text, s.local)
		}
		o.parsed = append(o.parsed, s)
	}
	return nil
}

func parsePolicyScenario(text string) (s policyScenario, err error) {
	identities, policies, _ := strings.Cut(text, "x")
	if s.identities, err = strconv.Atoi(identities); err == nil {
		if s.allPods = policies == "all"; s.allPods {
			s.policies = 1
		} else {
			s.policies, err = strconv.Atoi(policies)
		}
	}
	if err != nil || s.identities < 1 || s.identities > 1<<18 || s.policies < 1 || s.policies > 1<<18 {
		return s, fmt.Errorf("scenario %q: want numbers as in 10000x2000, or 10000xall", text)
	}
	return s, nil
}

// measurePolicies measures all scenarios, prints and returns what came of each.
func measurePolicies(w io.Writer, p site, o *policyOptions) (all [][]result, err error) {
	fmt.Fprintf(w,
		"\npolicy: network policies, maps in %s; %d pods of the node; each event measured %d times\n",
		p.mode, o.local, o.samples)
	fmt.Fprintln(w, "  From the change of a table to the kernel's map. "+
		"Entries for identities are computed: one for each pod,")
	fmt.Fprintln(w, "  peer identity and port, where each set of labels is an identity.")
	for _, s := range o.parsed {
		results, err := s.measure(w, p, o)
		if err != nil {
			return all, fmt.Errorf("scenario %s: %w", s, err)
		}
		all = append(all, results)
		peer, err := runPeer(o.peer, s)
		if err != nil {
			return all, err
		}
		for _, line := range peer {
			fmt.Fprintln(w, "  peer:", line)
		}
	}
	return all, nil
}

// runPeer has the peer measure a scenario, and returns what it says.
func runPeer(program string, s policyScenario) (lines []string, err error) {
	if program == "" || s.allPods {
		return nil, nil
	}
	cmd := exec.Command(program,
		strconv.Itoa(s.identities), strconv.Itoa(s.policies), strconv.Itoa(s.local))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", program, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}
