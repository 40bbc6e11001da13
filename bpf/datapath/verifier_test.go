// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"regexp"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// The verifier refuses programs of more than a million instructions that it has
// to look at, and of stacks above 512 bytes.
const complexityLimit = 500_000

var stackPattern = regexp.MustCompile(`stack depth ([0-9+]+)`)

// TestComplexity: every program is accepted with room to spare.
func TestComplexity(t *testing.T) {
	newFixture(t, packettest.World4) // for the privileges
	spec, err := loadPrograms()
	require.NoError(t, err)
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	require.NoError(t, err)
	defer collection.Close()
	for name, program := range collection.Programs {
		info, err := program.Info()
		require.NoError(t, err)
		verified, ok := info.VerifiedInstructions()
		require.True(t, ok)
		size, err := info.TranslatedSize()
		require.NoError(t, err)
		jited, err := info.JitedSize()
		require.NoError(t, err)
		stack := "?"
		if m := stackPattern.FindStringSubmatch(program.VerifierLog); m != nil {
			stack = m[1]
		}
		t.Logf("%-13s %6d instructions, %6d bytes of machine code, %7d verified, stack %s", name, size/8, jited, verified, stack)
		require.Less(t, verified, uint32(complexityLimit), name)
	}
}
