//go:build !linux

package rdma

func apart(string) string { return "not Linux" }

func netnsMode() (string, error) { return "", errNoFamily }
