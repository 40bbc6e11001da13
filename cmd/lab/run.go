// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/cmd/agent"
)

// AgentMain is the agent, for programs other than sluice that use the lab, such
// as tests: with arguments that begin with "agent" it runs until it is told to
// end, and does not return.
func AgentMain(args []string) {
	if len(args) < 2 || args[1] != "agent" {
		return
	}
	h := agent.New(agent.Cell)
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	err := flags.Parse(args[2:])
	if err == nil {
		err = agent.Run(h, flags, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
