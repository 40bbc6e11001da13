// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isolatedVariable is set in the namespaces of the benchmark.
const isolatedVariable = "SLUICE_BENCH_ISOLATED"

func isolated() bool { return os.Getenv(isolatedVariable) != "" }

// isolate runs this binary again, in a network and a mount namespace of its own:
// an agent with its maps in the kernel attaches programs, adds a device and sets
// parameters, which is not for the machine's own network.
func isolate() (code int, err error) {
	runtime.LockOSThread() // Pdeathsig is about the thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolatedVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	// The child ends by them, and has something to remove before.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it is gone already
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// setUpNamespaces gives the namespaces what the measured node has: one device,
// with the node's address.
func setUpNamespaces() error {
	// Mounts of the benchmark must not reach the machine's namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const far = uplink + "-far"
	if err := vn.LinkAdd(&vn.Veth{LinkAttrs: vn.LinkAttrs{Name: uplink}, PeerName: far}); err != nil {
		return fmt.Errorf("add device %s: %w", uplink, err)
	}
	for _, name := range []string{"lo", far, uplink} {
		device, err := vn.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find device %s: %w", name, err)
		}
		if err := vn.LinkSetUp(device); err != nil {
			return fmt.Errorf("set device %s up: %w", name, err)
		}
		if name == uplink {
			address := &vn.Addr{IPNet: &net.IPNet{IP: nodeAddr(0).AsSlice(), Mask: net.CIDRMask(16, 32)}}
			if err := vn.AddrAdd(device, address); err != nil {
				return fmt.Errorf("add address of %s: %w", name, err)
			}
		}
	}
	return nil
}
