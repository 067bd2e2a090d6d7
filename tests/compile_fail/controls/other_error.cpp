// SPDX-License-Identifier: Apache-2.0
// expect-error: a text that no compiler prints
static_assert(sizeof(int) == 0, "another reason");
