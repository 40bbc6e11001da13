// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// procfs makes a directory look like procfs with a range of local ports.
func procfs(t *testing.T, localPorts string) Procfs {
	dir := t.TempDir()
	path := filepath.Join(dir, "sys/net/ipv4/ip_local_port_range")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(localPorts), 0o644))
	return Procfs(dir)
}

func TestSettingsThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--overlay-port 0 is no port":               func(c *Config) { c.OverlayPort = 0 },
		"--overlay-vni 0 is out of bounds":          func(c *Config) { c.OverlayVNI = 0 },
		"--overlay-vni 16777216 is out of bounds":   func(c *Config) { c.OverlayVNI = 1 << 24 },
		"--overlay-mtu 1279 is out of bounds":       func(c *Config) { c.OverlayMTU = 1279 },
		"--overlay-mtu -1 is out of bounds":         func(c *Config) { c.OverlayMTU = -1 },
		`unknown value "lax" of --source-check`:     func(c *Config) { c.SourceCheck = "lax" },
		`unknown value "no" of --allow-localhost`:   func(c *Config) { c.AllowLocalhost = "no" },
		`--mark-mask "many" is no number`:           func(c *Config) { c.MarkMask = "many" },
		`--mark-mask "0x100000000" is no number`:    func(c *Config) { c.MarkMask = "0x100000000" },
		"--mark-mask 0x1000: want at least two":     func(c *Config) { c.MarkMask = "0x1000" },
		"--mark-mask 0x5000: want at least two":     func(c *Config) { c.MarkMask = "0x5000" },
		"--mark-mask 0: want at least two":          func(c *Config) { c.MarkMask = "0" },
		`--shared-ports : "" is no range`:           func(c *Config) { c.SharedPorts = "" },
		`--shared-ports 9-8: "9-8" is no range`:     func(c *Config) { c.SharedPorts = "9-8" },
		`--shared-ports 0-8: "0-8" is no range`:     func(c *Config) { c.SharedPorts = "0-8" },
		`--shared-ports 1-65536: "1-65536" is no`:   func(c *Config) { c.SharedPorts = "1-65536" },
		"--shared-ports 1,3,5,7,9: there is room f": func(c *Config) { c.SharedPorts = "1,3,5,7,9" },
	} {
		cfg := DefaultConfig
		change(&cfg)
		_, err := newSettings(cfg, Procfs(t.TempDir()))
		require.ErrorContains(t, err, want)
	}
	_, err := newSettings(DefaultConfig, procfs(t, "many\n"))
	require.ErrorContains(t, err, "--shared-ports=auto")
}

func TestSettings(t *testing.T) {
	s, err := newSettings(DefaultConfig, procfs(t, "32768\t60999\n"))
	require.NoError(t, err)
	require.Equal(t, bpf.ConfigStrictSource|bpf.ConfigBackstop|bpf.ConfigAllowLocalhost, s.flags)
	require.EqualValues(t, 0x3000, s.markMask)
	require.Empty(t, s.reason)

	cfg := DefaultConfig
	cfg.SourceCheck, cfg.Backstop, cfg.MarkMask = sourceCheckLoose, false, "0xc0000000"
	cfg.AllowLocalhost = allowLocalhostPolicy
	s, err = newSettings(cfg, Procfs(t.TempDir()))
	require.NoError(t, err)
	require.Zero(t, s.flags)
	require.EqualValues(t, 0xc0000000, s.markMask)
}

// text renders ranges as --shared-ports has them.
func text(ranges [bpf.SharedPortRanges]bpf.PortRange) string {
	var texts []string
	for _, r := range ranges {
		if r.Last != 0 {
			texts = append(texts, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	return strings.Join(texts, ",")
}

func TestSharedPorts(t *testing.T) {
	for _, test := range []struct {
		flag, local, want string
		clear             bool
	}{
		{"auto", "32768 60999", "1024-29999,61000-65535", true},
		{"auto", "10000 20000", "1024-9999,20001-29999,32768-65535", true},
		{"auto", "1024 65535", "1024-29999,32768-65535", false},
		{"auto", "1 1023", "1024-29999,32768-65535", true},
		{"10000-19999, 40000", "1 1", "10000-19999,40000-40000", true},
	} {
		got, reason, err := sharedPorts(test.flag, procfs(t, test.local))
		require.NoError(t, err)
		require.Equal(t, test.want, text(got), test)
		require.Equal(t, test.clear, reason == "", reason)
	}
	got, _, err := sharedPorts("auto", Procfs(t.TempDir()))
	require.NoError(t, err)
	require.Equal(t, "1024-29999,61000-65535", text(got), "the kernel's default where there is no procfs")
}
