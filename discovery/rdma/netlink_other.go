//go:build !linux

package rdma

func apart(string) string { return "not Linux" }

func ask() (answer, error) { return answer{}, errNoFamily }
