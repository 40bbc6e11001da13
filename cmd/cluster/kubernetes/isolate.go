// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// roleVariable tells a copy of the program what it is.
const (
	roleVariable = "SLUICE_CLUSTER_ROLE"
	roleCluster  = "cluster" // process 1 of the cluster's namespaces
	roleNode     = "node"    // process 1 of a node's namespaces
)

const (
	// lockPath is one for the machine, as the names of cgroups are.
	lockPath = "/tmp/sluice-cluster.lock"
	// lockFD is the file descriptor of the lock in the copy: the first of its ExtraFiles.
	lockFD = 3
	// pidFile names process 1 of the cluster, for the commands of cmd/cluster.
	pidFile = "pid"
)

func isolated() bool { return os.Getenv(roleVariable) == roleCluster }

// Init is called first by every program that starts a cluster. A copy of the
// program that is process 1 of a node does not return from it.
func Init() {
	switch os.Getenv(roleVariable) {
	case roleNode:
		fmt.Fprintln(os.Stderr, "node:", runNode())
		os.Exit(1)
	case roleCluster:
		if err := prepareNamespaces(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare namespaces:", err)
			os.Exit(1)
		}
	}
}

// RunIsolated runs this program again with the same arguments, as process 1 of
// new namespaces, and returns its exit status. Before and after it removes what
// a cluster leaves: also of a run that was killed. In the copy it does nothing,
// and inside is true.
func RunIsolated(options Options) (code int, inside bool, err error) {
	if isolated() {
		return 0, true, nil
	}
	if err := options.setDefaults(); err != nil {
		return 0, false, err
	}
	lock, err := takeLock()
	if err != nil {
		return 0, false, err
	}
	defer lock.Close()
	if err := removeRemains(options.Dir); err != nil {
		return 0, false, fmt.Errorf("remove what a former cluster left: %w", err)
	}
	_ = os.RemoveAll(filepath.Join(options.Dir, logDir))
	code, err = runCopy(options.Dir, lock)
	return code, false, errors.Join(err, removeRemains(options.Dir))
}

// takeLock locks the machine for one cluster. The lock ends with the last
// process that has the file open, which is this one or its copy.
func takeLock() (*os.File, error) {
	lock, err := os.OpenFile(lockPath, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another cluster runs on this machine: lock %s: %w", lockPath, err)
	}
	return lock, nil
}

func runCopy(dir string, lock *os.File) (code int, err error) {
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleCluster)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID |
			unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig: syscall.SIGKILL,
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces (needs root): %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, pidFile), []byte(pid), 0o600); err != nil {
		return 0, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// prepareNamespaces sets up what the program needs of its new namespaces.
func prepareNamespaces() error {
	unix.CloseOnExec(lockFD)
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	// Named network namespaces of the machine stay hidden, and those of the cluster.
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	return runAll("ip link set lo up")
}

// removeRemains removes everything of a cluster whose processes are gone, but its logs.
func removeRemains(dir string) error {
	if err := removeCgroups(clusterCgroup); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == logDir {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s %s: %w", fstype, target, err)
	}
	return nil
}
