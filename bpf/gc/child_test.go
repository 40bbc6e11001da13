// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// Tests of this binary that run in another process, if this variable says so.
const childEnv = "SLUICE_GC_TEST_CHILD"

func inChild(t *testing.T) string {
	what := os.Getenv(childEnv)
	if what == "" {
		t.Skip("runs as a process of another test only")
	}
	return what
}

func child(test, what string, before ...string) *exec.Cmd {
	args := append(before, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	return cmd
}

// In a time namespace, as containers may have one, the process has another clock than
// the kernel's programs. Nothing that lives is taken for expired, and the other
// way round.
func TestTimeNamespace(t *testing.T) {
	requireRoot(t)
	if _, err := os.Stat("/proc/self/timens_offsets"); err != nil {
		t.Skip("the kernel has no time namespaces")
	}
	for _, offset := range []time.Duration{10 * 24 * time.Hour, -10 * time.Minute} {
		cmd := child("TestTimeNamespaceChild", fmt.Sprint(int(offset.Seconds())),
			"unshare", "--time", "--monotonic", fmt.Sprint(int(offset.Seconds())), "--fork", "--")
		before, err := Now()
		require.NoError(t, err)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: TestTimeNamespaceChild")
		var theirs uint32
		_, line, ok := strings.Cut(string(out), "programs' clock: ")
		require.True(t, ok, "%s", out)
		_, err = fmt.Sscan(line, &theirs)
		require.NoError(t, err)
		after, err := Now()
		require.NoError(t, err)
		require.GreaterOrEqual(t, theirs, before)
		require.LessOrEqual(t, theirs, after)
	}
}

func TestTimeNamespaceChild(t *testing.T) {
	var offset int
	_, err := fmt.Sscan(inChild(t), &offset)
	require.NoError(t, err)
	now, err := Now()
	require.NoError(t, err)
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	after, err := Now()
	require.NoError(t, err)
	// A second more: the offset of a time namespace moves the begin of its seconds.
	require.GreaterOrEqual(t, ts.Sec, int64(now)+int64(offset)-1, "the test is not in a time namespace")
	require.LessOrEqual(t, ts.Sec, int64(after)+int64(offset)+1, "the test is not in a time namespace")
	t.Logf("programs' clock: %d", now)
	eachMethod(t, func(f *fixture) {
		counts, err := f.Count()
		require.NoError(f, err)
		after, err := Now()
		require.NoError(f, err)
		require.GreaterOrEqual(f, counts.Now, now)
		require.LessOrEqual(f, counts.Now, after)
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now + 300})
			f.pair(flow, 0)
			require.Equal(f, Pass{Scanned: 3}, f.run(Filter{Expired: true, Orphans: true}), name)
			f.connect(flow, ctmap.Entry{Lifetime: f.now - 3})
			f.pair(flow, 5)
			require.Equal(f, Pass{Scanned: 1, Expired: 1, Translations: 2}, f.run(Filter{Expired: true}), name)
		}
	})
}

// manyFlow is one of many flows, whose translations differ: the even ones are IPv4.
func manyFlow(i int) ctmap.Tuple {
	port, server := 1000+i%50000, 1+i/50000
	if i%2 == 0 {
		return flow(unix.IPPROTO_TCP, fmt.Sprintf("10.1.%d.%d:%d", i>>9&0xff, i>>1&0xff, port), fmt.Sprintf("192.0.2.%d:80", server))
	}
	return flow(unix.IPPROTO_UDP, fmt.Sprintf("[2001:db8::%x]:%d", i, port), fmt.Sprintf("[2001:db8:1::%x]:53", server))
}

// Whenever the agent is killed in a pass: what lives stays, nothing is left
// condemned, and the next pass finishes it.
func TestKilled(t *testing.T) {
	const flows, room = 4000, 1 << 16
	for method, kills := range map[Method]int{Iterator: 8, Keys: 4} {
		t.Run(string(method), func(t *testing.T) {
			f := newFixtureOf(t, method, room, func(string) bool { return true })
			midway := 0
			for range kills {
				for i := range flows {
					lifetime := f.now + 1000
					if i%4 != 0 && i%4 != 3 {
						lifetime = f.now - long
					}
					f.connect(manyFlow(i), ctmap.Entry{Lifetime: lifetime})
					f.pair(manyFlow(i), long)
				}
				f.killInPass(method)
				left := f.dump()
				if expired := f.expired(left); expired > 0 && expired < flows/2 {
					midway++
				}
				f.requireLive(left, flows)
				filter := Filter{Expired: true, Orphans: true}
				f.run(filter)
				f.run(filter)
				left = f.dump()
				f.requireLive(left, flows)
				require.Len(t, left, flows/2*3)
			}
			t.Logf("%d of %d kills were in the middle of the work", midway, kills)
		})
	}
}

func (f *fixture) expired(left contents) (n int) {
	for _, e := range left {
		if e.CT != nil && e.CT.Lifetime < f.now {
			n++
		}
	}
	return n
}

func (f *fixture) requireLive(left contents, flows int) {
	f.Helper()
	for w, e := range left {
		if e.CT != nil && e.CT.Lifetime == 0 || e.NAT != nil && e.NAT.Used == 0 {
			f.Fatalf("%v is condemned", w)
		}
	}
	for i := range flows {
		t := manyFlow(i)
		if i%4 != 0 && i%4 != 3 {
			continue
		}
		for _, w := range []where{{ctmap.CTName(t.Is6(), t.Protocol), t}, {natName(t), t}, {natName(t), replies(t)}} {
			if _, ok := left[w]; !ok {
				f.Fatalf("%v is gone", w)
			}
		}
	}
}

// killInPass has another process collect, and kills it at a random time.
func (f *fixture) killInPass(method Method) {
	cmd := child("TestKilledChild", string(method))
	for _, m := range f.maps[:mapCount] {
		fd, err := unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(f, err)
		file := os.NewFile(uintptr(fd), "map")
		defer file.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	out, in, err := os.Pipe()
	require.NoError(f, err)
	defer out.Close()
	cmd.ExtraFiles = append(cmd.ExtraFiles, in)
	require.NoError(f, cmd.Start())
	in.Close()
	_, err = io.ReadFull(out, make([]byte, 1))
	require.NoError(f, err, "the process did not come to its pass")
	time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
	require.NoError(f, cmd.Process.Kill())
	require.ErrorContains(f, cmd.Wait(), "killed")
}

func TestKilledChild(t *testing.T) {
	method := Method(inChild(t))
	var maps [mapCount]*ebpf.Map
	for i := range maps {
		var err error
		maps[i], err = ebpf.NewMapFromFD(3 + i)
		require.NoError(t, err)
	}
	c, err := Open(Maps{maps[0], maps[1], maps[2], maps[3], maps[4], maps[5]})
	require.NoError(t, err)
	c.always = method
	_, err = os.NewFile(3+mapCount, "ready").Write([]byte{1})
	require.NoError(t, err)
	for {
		_, err := c.Run(t.Context(), Filter{Expired: true, Orphans: true, Removed: func(Entry) {}})
		require.NoError(t, err)
	}
}
