// SPDX-License-Identifier: Apache-2.0
// expect-error: nothing is wrong here
int main() {}
