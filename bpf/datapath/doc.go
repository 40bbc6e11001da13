// SPDX-License-Identifier: Apache-2.0

// Package datapath loads the programs of bpf/programs with the maps that they
// share with the agent.
package datapath
