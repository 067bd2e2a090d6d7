// SPDX-License-Identifier: Apache-2.0
static_assert(sizeof(int) == 0, "refused, but for no named reason");
