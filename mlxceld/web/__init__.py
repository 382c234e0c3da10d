"""What both HTTP applications share: who may call, and how they are described."""
