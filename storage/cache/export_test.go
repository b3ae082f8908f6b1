package cache

import "context"

// Exec runs a statement on the writer's connection.
func (c *Cache) Exec(ctx context.Context, stmt string) error {
	_, err := c.file.write.ExecContext(ctx, stmt)
	return err
}
