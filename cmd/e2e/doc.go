// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the built agent against a real API server and real kernel
// maps; see make e2e. It has tests only, under the build tag e2e.
//
//	test ──client-go──► kube-apiserver ──watch──► sluice agent ──► kernel maps
//	  │                      │                                         │
//	  │                      └──list──► oracle: from scratch ──┐   pins, by
//	  └──kills, restarts, measures                             compare ◄┘ system calls
//
// The page is looked at in a browser without a screen, see make browser:
//
//	test ──DevTools──► chromium ──► proxy ──► sluice agent, with manifests in files
//
// The tests run in a network and a mount namespace of their own: the devices,
// addresses, routes and kernel parameters that the agent sees are those of
// network_test.go, and nothing is left on the machine.
package e2e
