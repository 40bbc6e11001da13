// SPDX-License-Identifier: Apache-2.0

// Package gctest is the other side of the garbage collection, for its tests: a
// gateway that uses connections and translations, by the datapath's own code, and
// sees which of them were lost although it was promised that they live. In go the
// six maps of a set; out come counts.
package gctest
